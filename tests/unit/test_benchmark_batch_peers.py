"""The comparison of batches with those of other servers: refusals, answered lines, and the table."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.batch_peers import (
    BYTES,
    CPU,
    OF_RESPONSES,
    PEERS,
    RATE,
    Fate,
    RefusedError,
    answered,
    refusal,
    table,
    wait_for_requests,
)

type Json = dict[str, Any]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"error": {"message": "No  such\\nendpoint.", "code": 400}}', "No such endpoint."),
        ('{"detail": "Not Found"}', "Not Found"),
        ('{"message": "No."}', "No."),
        ('{"error": "No."}', "No."),
        ("[1]", "[1]"),
        ("<html>Bad gateway</html>", "<html>Bad gateway</html>"),
    ],
)
def test_refusal_gives_the_message_of_any_body(body: str, said: str) -> None:
    assert refusal(400, body) == f"refused with 400: {said}"


def test_refusal_of_a_long_body_is_cut() -> None:
    assert len(refusal(502, "x" * 10_000)) < 400


def output_line(name: str, status: int | None) -> str:
    return json.dumps({"custom_id": name, "response": {"status_code": status} if status else None})


def test_answered_lines_count_once_and_only_with_an_answer() -> None:
    lines = [("a", 200), ("b", 200), ("a", 200), ("c", 500), ("d", None)]
    assert answered("\n".join(output_line(*each) for each in lines)) == 2


def test_answered_lines_of_an_empty_file_are_none() -> None:
    assert answered("") == 0


def test_batch_that_fails_at_once_is_not_waited_for() -> None:
    client = SimpleNamespace(batches=SimpleNamespace(retrieve=lambda _: SimpleNamespace(status="failed")))
    model = SimpleNamespace(requests=lambda _: [])
    with pytest.raises(RefusedError, match="`failed` before the server was killed"):
        wait_for_requests(cast("Any", client), "batch_1", cast("Any", model), 1)


def of_server(title: str, *rates: float, error: str = "") -> Json:
    rounds = [{RATE: rate, CPU: 100 / rate, BYTES: 1_000.0} for rate in rates]
    fate = Fate("completed", 40, 39, 4.4, 52)
    return {"title": title, "version": "1", "rounds": rounds, OF_RESPONSES: "refused", "fate": fate, "error": error}


def test_table_has_medians_with_ratios_of_the_same_round_to_the_first_server() -> None:
    servers = {"a": of_server("A", 10, 20, 100), "b": of_server("B", 5, 10, 10), "c": of_server("third", error="No.")}
    shown = table({"at": "now", "load": [1.0, 2.0], "servers": servers})
    assert "| lines a second | 20.0 | 10.0 (0.50) |" in shown
    assert "| CPU a line | 5.0 ms | 10.0 ms (2.00) |" in shown
    assert "| bytes stored a line | 1,000 | 1,000 (1.00) |" in shown
    assert shown.endswith("\n- third 1: No.\n")
    assert "| third" not in shown


def test_fate_says_what_is_in_the_output_and_when() -> None:
    said = str(Fate("completed", 40, 39, 4.4, 52))
    assert said == "39 of 40 lines; `completed` 4 s after the restart; 52 requests to the model"


def test_peers_have_pinned_versions() -> None:
    assert all(each.version for each in PEERS)
