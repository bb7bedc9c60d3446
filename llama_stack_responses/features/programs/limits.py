"""Limits on the programs that models write to call tools."""

from __future__ import annotations

from typing import Final

CODE_CHARACTERS: Final = 131_072
"""Maximum length of a program. Models write some hundred lines; each step compiles the whole program again."""
