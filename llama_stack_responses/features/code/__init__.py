"""Containers that run the code of models: the tools `code_interpreter` and `shell`, `/v1/containers` and `/v1/skills`.

`sandbox/` isolates and limits one container, `containers/` has those of this server, `skills/` what users store for
them, and `tools/` the two tools.
"""
