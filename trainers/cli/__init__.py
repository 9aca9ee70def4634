"""The subcommands of `llm-envs train`."""
