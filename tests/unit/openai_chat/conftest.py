"""Connections on both event loops: servers run on uvloop where it is installed, and its transports are its own."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import uvloop

FACTORIES: Final[Mapping[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every test that awaits runs on each of them."""
    return FACTORIES
