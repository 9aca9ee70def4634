"""Tasks made from data sets."""
