"""The command `llm-envs`: one module for each subcommand."""
