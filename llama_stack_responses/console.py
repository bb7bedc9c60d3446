"""The program `llama-stack-responses`: its command line, which ends silently with Ctrl-C also while it is imported."""

from __future__ import annotations

from .commands.interrupts import end_at_once


def main() -> int:
    """Run the command line, and return its exit status."""
    end_at_once()
    try:
        from .cli import main as run

        return run()
    finally:
        end_at_once()
