"""The names of programs that call tools, as clients, models and conversations have them."""

from __future__ import annotations

from typing import Final

PROGRAMS: Final = "programmatic_tool_calling"
"""The type of the tool with which the model writes programs."""
PROGRAM: Final = "program"
"""The type of the item of a program."""
PROGRAM_OUTPUT: Final = "program_output"
"""The type of the item of its output."""
RUN_PROGRAM: Final = "run_program"
"""The function with which the model runs a program."""
