from __future__ import annotations

import math
from typing import Any

import pytest

from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.store import codec
from llama_stack_responses.store.content_names import Hasher, canonical
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.history_nodes import FAN, Node, decode, extend, link_depths, read_chain, total
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Put, Record


def test_links_of_node_are_among_those_of_parent() -> None:
    for depth in range(1, 5000):
        links = link_depths(depth)
        assert links[0] == depth - 1
        assert links[-1] == 0
        assert links == sorted(set(links), reverse=True)
        assert set(links) <= {depth - 1, *link_depths(depth - 1)}
        assert len(links) <= FAN * math.ceil(math.log(depth + 1, FAN))


@pytest.mark.parametrize("depth", [1, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 256, 1999, 4095, 4096, 4097])
def test_all_ancestors_are_reached_in_few_steps(depth: int) -> None:
    known, new, steps = {depth}, {depth}, 0
    while new := {link for each in new for link in link_depths(each)} - known:
        known |= new
        steps += 1
    assert known == set(range(depth + 1))
    assert steps <= max(1, math.ceil(math.log(depth, FAN)))


def test_extended_node_decodes_to_itself() -> None:
    names: list[str] = []
    data = None
    for depth in range(100):
        node = extend(names[-1] if names else None, data, [{"n": depth}])
        assert node == Node(depth, tuple(names[at] for at in link_depths(depth)), [{"n": depth}])
        assert node.parent == (names[-1] if names else None)
        data = node.encode()
        assert decode(data) == node
        names.append(Hasher(ANONYMOUS).content(b"%d" % depth))


def test_node_holds_size_of_its_history() -> None:
    name, data, size = None, None, 0
    for depth in range(70):
        data = extend(name, data, [{"n": "x" * depth}]).encode()
        size += codec.size(data, codec.whole_text(data))
        assert total(data) == size
        name = Hasher(ANONYMOUS).content(b"%d" % depth)


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "phase": None,
    "content": [{"type": "output_text", "text": "hello", "annotations": [{"url": "x"}], "logprobs": [1]}],
}


@pytest.mark.parametrize(
    "same",
    [
        {**MESSAGE, "id": "msg_2", "status": "incomplete"},
        {name: MESSAGE[name] for name in reversed(MESSAGE)},
        {"role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
        {"role": "assistant", "content": "hello"},
    ],
)
def test_equivalent_items_have_same_canonical_form(same: dict[str, object]) -> None:
    assert canonical(same) == canonical(MESSAGE)


@pytest.mark.parametrize(
    "other",
    [
        {**MESSAGE, "role": "user"},
        {**MESSAGE, "phase": "commentary"},
        {**MESSAGE, "content": [{"type": "output_text", "text": "hello!"}]},
        {**MESSAGE, "content": [{"type": "refusal", "text": "hello"}]},
        {**MESSAGE, "content": []},
        {**MESSAGE, "type": "other"},
    ],
)
def test_different_items_have_different_canonical_form(other: dict[str, object]) -> None:
    assert canonical(other) != canonical(MESSAGE)


def test_history_key_depends_on_owner_and_items_only() -> None:
    items = [{"role": "user", "content": str(index)} for index in range(6)]
    names = Hasher(Owner("alice")).histories(None, items)
    assert len({*names}) == 6
    for cut in range(1, 6):
        assert Hasher(Owner("alice")).histories(names[cut - 1], items[cut:]) == names[cut:]
    for stranger in (Owner("bob"), Owner("alice", tenant="north"), Owner("", tenant="alice")):
        assert not {*names} & {*Hasher(stranger).histories(None, items)}
    assert not {*names} & {*Hasher(Owner("alice")).histories(None, items[1:])}


@pytest.mark.parametrize(
    "item",
    [
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "a", "status": "incomplete"},
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"},
    ],
)
def test_status_of_failed_call_changes_canonical_form(item: dict[str, Any]) -> None:
    assert canonical(item) != canonical(item | {"status": "completed"})


async def test_known_records_of_history_are_not_read_again() -> None:
    older, newer = Hasher(ANONYMOUS).content(b"older"), Hasher(ANONYMOUS).content(b"newer")
    first = extend(None, None, [{"n": 0}]).encode()
    records = MemoryRecords()
    await records.commit([Put(f"n/{newer}", extend(older, first, [{"n": 1}]).encode())])
    assert await read_chain(records, Decoder(), newer) is None
    chain = await read_chain(records, Decoder(), newer, known={f"n/{older}": Record(first, 1)})
    assert chain is not None
    assert [item for _, node in chain for item in node.items] == [{"n": 0}, {"n": 1}]
