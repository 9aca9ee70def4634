"""A discrete-event simulation of rollouts, engines, tools, training and weight updates (`benchmarks/simulate.py`)."""
