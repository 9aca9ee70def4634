"""`llm-envs audit`: computes again what a training stored, and names the first difference."""
