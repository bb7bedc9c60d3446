from __future__ import annotations

import math
from typing import Any

import pytest

from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.store.hashing import Hasher, canonical
from llama_stack_responses.store.nodes import FAN, Node, decode, extend, link_depths


def test_a_childs_links_are_among_its_parents_and_the_parent() -> None:
    for depth in range(1, 5000):
        links = link_depths(depth)
        assert links[0] == depth - 1
        assert links[-1] == 0
        assert links == sorted(set(links), reverse=True)
        assert set(links) <= {depth - 1, *link_depths(depth - 1)}
        assert len(links) <= FAN * math.ceil(math.log(depth + 1, FAN))


@pytest.mark.parametrize("depth", [1, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 256, 1999, 4095, 4096, 4097])
def test_all_ancestors_are_known_after_few_steps(depth: int) -> None:
    known, new, steps = {depth}, {depth}, 0
    while new := {link for each in new for link in link_depths(each)} - known:
        known |= new
        steps += 1
    assert known == set(range(depth + 1))
    assert steps <= max(1, math.ceil(math.log(depth, FAN)))


def test_nodes_extend_each_other_and_come_back() -> None:
    names: list[str] = []
    data = None
    for depth in range(100):
        node = extend(names[-1] if names else None, data, [{"n": depth}])
        assert node == Node(depth, tuple(names[at] for at in link_depths(depth)), [{"n": depth}])
        assert node.parent == (names[-1] if names else None)
        data = node.encode()
        assert decode(data) == node
        names.append(Hasher(ANONYMOUS).content(b"%d" % depth))


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
def test_the_same_item_in_other_words_is_the_same(same: dict[str, object]) -> None:
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
def test_another_item_is_another(other: dict[str, object]) -> None:
    assert canonical(other) != canonical(MESSAGE)


def test_a_history_is_named_by_its_items_alone() -> None:
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
def test_what_did_not_work_is_another_item(item: dict[str, Any]) -> None:
    assert canonical(item) != canonical(item | {"status": "completed"})
