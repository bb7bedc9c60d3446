"""What is installed beside this package: the host, and a version of `mcp` that the host can use."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final


@dataclass(frozen=True, slots=True)
class InstalledHost:
    """One of the two hosts.

    Attributes:
        package: what is imported.
        name: its distribution, and the extra of ours that installs it.
        command: what starts a stack; the path of its configuration follows.
        options: what follows the path.
        mcp_major: the major version of `mcp` that it uses.
        mcp: the same as a requirement.
    """

    package: str
    name: str
    command: str
    options: str
    mcp_major: int
    mcp: str

    def run(self, config: str) -> str:
        """The command line that starts a stack."""
        return " ".join(filter(None, [self.command, config, self.options]))


OGX: Final = InstalledHost("ogx", "ogx", "ogx run", "--insecure", 2, "mcp>=2.3,<3")
LLAMA_STACK: Final = InstalledHost("llama_stack", "llama-stack", "llama stack run", "", 1, "mcp>=1.23,<2")


def installed_host() -> InstalledHost | None:
    """The host that is installed here; None if there is none."""
    return next((host for host in (OGX, LLAMA_STACK) if find_spec(host.package)), None)


def wrong_mcp(host: InstalledHost) -> str | None:
    """What to install where `mcp` has a major version that the host cannot use; None if all is well."""
    try:
        there = version("mcp")
    except PackageNotFoundError:
        there = ""
    if there.partition(".")[0] == str(host.mcp_major):
        return None
    found = f"version {there} is installed" if there else "none is installed"
    return (
        f"{host.name} needs the package mcp in version {host.mcp_major}, and {found}: "
        f"pip install 'llama-stack-responses[{host.name}]', or pip install '{host.mcp}'."
    )
