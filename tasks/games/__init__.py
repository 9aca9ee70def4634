"""Games of several turns."""
