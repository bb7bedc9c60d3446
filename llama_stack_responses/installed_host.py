"""Detects the installed host, whether the installed version of `mcp` fits it, and the version of this package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final


@dataclass(frozen=True, slots=True)
class InstalledHost:
    """One of the two hosts.

    Attributes:
        package: the Python package to import.
        name: its distribution, and the extra of this package that installs it.
        command: the command that starts a stack; the path of its configuration follows.
        options: arguments that follow the path.
        mcp_major: the major version of `mcp` that the host uses.
        mcp: the same as a requirement.
    """

    package: str
    name: str
    command: str
    options: str
    mcp_major: int
    mcp: str

    def run(self, config: str) -> str:
        """Return the command line that starts a stack."""
        return " ".join(filter(None, [self.command, config, self.options]))


OGX: Final = InstalledHost("ogx", "ogx", "ogx run", "--insecure", 2, "mcp>=2.3,<3")
LLAMA_STACK: Final = InstalledHost("llama_stack", "llama-stack", "llama stack run", "", 1, "mcp>=1.23,<2")


def installed_host() -> InstalledHost | None:
    """Return the installed host, or None. OGX takes precedence if both are installed."""
    return next((host for host in (OGX, LLAMA_STACK) if find_spec(host.package)), None)


def own_version() -> str:
    """Return the version of this package; an empty string if it is not installed."""
    try:
        return version("llama-stack-responses")
    except PackageNotFoundError:
        return ""


def wrong_mcp(host: InstalledHost) -> str | None:
    """Return a message that explains which `mcp` to install, or None if its major version fits the host."""
    try:
        there = version("mcp")
    except PackageNotFoundError:
        there = ""
    if there.partition(".")[0] == str(host.mcp_major):
        return None
    state = f"version {there} is installed" if there else "none is installed"
    return (
        f"{host.name} needs the package mcp in version {host.mcp_major}, and {state}: "
        f"pip install 'llama-stack-responses[{host.name}]', or pip install '{host.mcp}'."
    )
