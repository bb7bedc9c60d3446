"""What a response on a connection has beside its request."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..inputs.connection_memory import Chains
from .stop_point import Boundary


@dataclass(frozen=True, slots=True)
class OnConnection:
    """How a response is made for a connection that stays open.

    Attributes:
        chains: the connection's memory.
        generate: whether a model is asked.
        boundary: where the response is to end before its time.
    """

    chains: Chains
    generate: bool = True
    boundary: Boundary = field(default_factory=Boundary)
