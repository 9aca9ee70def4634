"""Environments in processes that can be killed."""
