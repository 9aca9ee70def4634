"""Forward passes that differ from a plain one: prefix trees, sampling masks, teachers."""
