"""Gauges: collected from the threads of exporters, also while the store does not answer."""

import asyncio

from llama_stack_responses.telemetry.gauges import GaugeSources, StoreState
from tests.support.exported_telemetry import ExportedTelemetry

COUNTS = {("responses.running", "foreground"): 3, ("connections.open", "stream"): 2}
STORE = {
    "llama_stack_responses.queue.length": 4,
    "llama_stack_responses.queue.age": 1.5,
    "llama_stack_responses.queue.deferred.length": 7,
    "llama_stack_responses.queue.deferred.age": 8.5,
    "llama_stack_responses.store.size": 1000,
    "llama_stack_responses.store.free": 5000,
    "llama_stack_responses.store.volatile": 1,
    "llama_stack_responses.store.damaged": 1,
    "llama_stack_responses.store.held_back": 25,
}


def values(watched: ExportedTelemetry) -> dict[str, float]:
    """Collect, and return the value of each gauge."""
    return {name: value for name, points in watched.points().items() for _, _, value in points}


class Store:
    """The state of a store, and how often it was read."""

    def __init__(self) -> None:
        self.reads = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def load(self) -> StoreState:
        self.reads += 1
        await self.answers.wait()
        return StoreState(4, 1.5, {"batch": (7, 8.5)}, 1000, 5000, 1, 1, 25)


def shown(store: Store) -> ExportedTelemetry:
    watched = ExportedTelemetry()
    watched.telemetry.show(
        GaugeSources(
            lambda: COUNTS,
            store.load,
            lambda: {"local": 1},
            lambda: {"store": 60.0},
            lambda: -2.5,
            lambda: {"local": (32, 168)},
        )
    )
    return watched


async def test_gauges_are_collected_in_another_thread_with_one_question_to_the_store() -> None:
    store = Store()
    found = await asyncio.to_thread(values, shown(store))
    assert found == STORE | {
        "llama_stack_responses.responses.running": 3,
        "llama_stack_responses.connections.open": 2,
        "llama_stack_responses.model_server.up": 1,
        "llama_stack_responses.model_server.running": 32,
        "llama_stack_responses.model_server.waiting": 168,
        "llama_stack_responses.certificate.remaining": 60.0,
        "llama_stack_responses.clock.difference": -2.5,
    }
    assert store.reads == 1


async def test_store_is_not_read_until_an_exporter_collects() -> None:
    store = Store()
    shown(store)
    await asyncio.sleep(0)
    assert store.reads == 0


async def test_store_that_does_not_answer_leaves_its_gauges_without_value() -> None:
    store = Store()
    store.answers.clear()
    watched = shown(store)
    found = await asyncio.to_thread(values, watched)
    assert found.keys().isdisjoint(STORE)
    assert found["llama_stack_responses.responses.running"] == 3


async def test_collection_in_the_event_loop_does_not_wait_for_itself() -> None:
    store = Store()
    found = values(shown(store))
    assert found["llama_stack_responses.connections.open"] == 2
    assert store.reads == 0
