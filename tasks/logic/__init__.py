"""Logic: puzzles whose answer can be proved."""
