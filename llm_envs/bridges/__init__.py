"""Other systems as parts of ours: tools from an MCP server."""
