"""Running one response: model rounds, tool calls, and events on their way out.

`factory.py` builds a generation from its `dependencies.py`; `loop.py` alternates model rounds (`model_round.py`) and
tool calls (`tool_execution.py`). `run.py` runs a foreground response; `jobs/` runs background responses.
"""
