"""The import of the host, for commands that use its code."""

from __future__ import annotations

from importlib import import_module

from ..installed_host import installed_host, wrong_mcp
from .command_error import CommandError


def import_host() -> None:
    """Import the installed host. The modules of `host/` take its names from the package that is imported already.

    Raises:
        CommandError: no host is installed, or the installed version of `mcp` does not fit it.
    """
    host = installed_host()
    if host is None:
        raise CommandError("Neither llama-stack nor OGX is installed here: run this where the stack runs.", 2)
    if wrong := wrong_mcp(host):
        raise CommandError(wrong, 2)
    import_module(host.package)
