"""Python for models, run where it can do no harm."""
