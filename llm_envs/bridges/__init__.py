"""Doors to other suites: their environments as ours, and ours as theirs, one module for each suite.

A module imports its suite only when it is used. If the package is missing, the error names the extra.
"""
