"""Checks of settings, before a model is loaded."""
