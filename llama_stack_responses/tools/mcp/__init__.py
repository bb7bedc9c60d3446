"""The MCP client, on top of the `mcp` package."""
