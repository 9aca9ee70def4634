"""vLLM as a policy: an engine in the process, or servers. `llm_envs.policies` exports the public names."""
