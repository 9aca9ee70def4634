"""Choose the episodes to play: seeds, mixtures, curricula, prompts. `llm_envs.rollout` exports the public names."""
