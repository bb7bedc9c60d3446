"""What the process of a proxy is started with."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

PROXY_BYTES: Final = 64 * 2**20
PROXY_THREADS: Final = 40
"""What the process of a proxy may take of its control group in addition to the container: it takes 26 MiB of memory
without connections, and looks up names in up to 32 threads.
"""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """What a proxy lets out. It is passed to the process as JSON.

    Attributes:
        hosts: the hosts that may be reached, in the form of `host_of`.
        ports: the ports of theirs.
        secrets: by host, the values of its secrets by their names.
        certificates: by host with secrets, a certificate and its private key, in PEM.
        trust: the certificates of the authorities that hosts may have theirs from, in PEM.
        networks: networks that may be reached although they are not public.
        nat64: prefixes of NAT64.
        connections: maximum number of connections at the same time.
        traffic_bytes: maximum size of all data.
        idle_seconds: time without data after which a connection ends.
        seconds: time limit of a connection.
    """

    hosts: Sequence[str]
    ports: Sequence[int]
    secrets: dict[str, dict[str, str]] = field(repr=False)
    certificates: dict[str, str] = field(repr=False)
    trust: str = field(repr=False)
    networks: Sequence[str]
    nat64: Sequence[str]
    connections: int
    traffic_bytes: int
    idle_seconds: float
    seconds: float

    @classmethod
    def read(cls, descriptor: int) -> Self:
        """Read the settings from a descriptor, and close it."""
        with os.fdopen(descriptor) as file:
            return cls(**json.load(file))


def shared_count(descriptor: int) -> memoryview[int]:
    """Return a number in memory that the server and the proxy share, as the only one of a sequence."""
    return memoryview(mmap.mmap(descriptor, 8)).cast("q")
