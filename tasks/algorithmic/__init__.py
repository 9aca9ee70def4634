"""Algorithms carried out by hand."""
