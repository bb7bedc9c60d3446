"""Speaks with MCP servers, by the `mcp` package."""
