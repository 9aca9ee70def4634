"""A training run: its processes, checkpoints, logged means, non-finite steps and model card."""
