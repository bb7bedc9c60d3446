"""The option that names the stack's configuration."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Final

DEFAULT_CONFIG: Final = Path("config.yaml")


def add_config(command: ArgumentParser) -> None:
    """Add the option `--config` to a command."""
    command.add_argument(
        "--config",
        type=Path,
        default=DEFAULT_CONFIG,
        metavar="CONFIG",
        help="the stack's configuration, which names the store (config.yaml); its variables come from the environment",
    )
