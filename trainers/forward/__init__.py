"""Forward passes that differ from a plain one: packed rows, shared prompts, sampling masks, teachers."""
