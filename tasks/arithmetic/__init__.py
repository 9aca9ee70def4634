"""Tasks of numbers: arithmetic without tools."""
