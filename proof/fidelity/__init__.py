"""Certificates of fidelity: our verdicts on benchmarks against those of their own scorers."""
