"""Choose the episodes to play: seeds, mixtures, curricula, prompts.

Import the public names from `llm_envs.rollout`: `SeedSource`, `PromptSource`, `Curriculum`, `derive_seed`, ...
"""
