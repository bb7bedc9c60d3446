"""Tools: what the model can call, and how a call looks to the client.

`tool.py` and `tool_function.py` are the interface, `registry.py` lists all tools. The client runs those of `client/`;
this server runs those of `hosted/` and `mcp/`.
"""
