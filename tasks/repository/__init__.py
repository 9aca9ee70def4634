"""Repairs of real Python projects, which the user names: problems made from a project, and the task on them."""
