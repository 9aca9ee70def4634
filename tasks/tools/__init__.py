"""Tasks in which the agent has tools."""
