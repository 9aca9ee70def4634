"""Language and format: what a program can verify about a text."""
