"""Benchmarks by their names, scored as their own packages score them."""
