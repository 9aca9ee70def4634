"""Code, run in the sandbox."""
