"""Sessions: which responses belong together, and what a row shows of them."""

from __future__ import annotations

from typing import Any

from llama_stack_responses.features.page.sessions import sessions_of
from llama_stack_responses.store.list_rows import read_list_row

Json = dict[str, Any]


def row(name: str, previous: str | None = None, **fields: Any) -> Json:
    created = fields.pop("created_at", ord(name[0]))
    return read_list_row(f"l/x/o/{name}", {"created_at": created, "previous_response_id": previous, **fields}, 1)


def test_chain_with_branches_is_one_session() -> None:
    rows = [row("e", "b", words="Other?"), row("d", None, words="Alone"), row("c", "b"), row("b", "a"), row("a")]
    rows[-1]["words"] = "First?"
    [found] = sessions_of(rows)
    assert (found["id"], found["kind"], found["turns"], found["earlier"]) == ("e", "chain", 4, False)
    assert (found["words"], found["started_at"]) == ("First?", ord("a"))


def test_conversation_is_a_session_of_its_own_with_one_response_too() -> None:
    rows = [row("c", conversation="conv_1"), row("b"), row("a", conversation="conv_2")]
    assert [(each["id"], each["turns"], each["kind"]) for each in sessions_of(rows)] == [
        ("conv_1", 1, "conversation"),
        ("conv_2", 1, "conversation"),
    ]


def test_chain_whose_beginning_is_not_among_the_rows_says_so() -> None:
    found = sessions_of([row("d", "x"), row("c", "y"), row("b", "x")])
    assert {each["id"]: (each["turns"], each["earlier"]) for each in found} == {"d": (2, True), "c": (1, True)}


def test_session_adds_up_its_responses_and_is_sorted_by_its_last_end() -> None:
    rows = [
        row("d", "c", created_at=40, seconds=1.0),
        row("b", "a", created_at=30, seconds=100.5, status="failed", input_tokens=5, output_tokens=2, model="p/m"),
        row("a", created_at=20, seconds=None, status="in_progress", model="p/n"),
        row("c", created_at=10),
    ]
    first, second = sessions_of(rows)
    assert (first["id"], first["last_at"], first["seconds"]) == ("b", 130.5, 100.5)
    assert (first["input_tokens"], first["output_tokens"], first["errors"], first["running"]) == (5, 2, 1, 1)
    assert first["models"] == ["p/m", "p/n"]
    assert (second["id"], second["errors"]) == ("d", 0)
