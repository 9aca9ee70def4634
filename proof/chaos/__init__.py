"""Random faults against the whole loop, drawn from a seed: nothing may be lost, doubled or hung (`make chaos`)."""
