"""Run connections on both event loops: servers use uvloop where it is installed, which has its own transports."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import uvloop

FACTORIES: Final[Mapping[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every async test on each event loop."""
    return FACTORIES
