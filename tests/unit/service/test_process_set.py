"""Several processes report as one."""

from __future__ import annotations

from itertools import permutations
from typing import Any, Final

import pytest

from llama_stack_responses.service.process_set import added, history_of_both, of_all
from llama_stack_responses.service.readiness import ReadinessReport

READY: Final = ReadinessReport("ready", {"store": "ok", "worker": "ok"})
AWAY: Final = ReadinessReport("not_ready", {"store": "unavailable", "worker": "ok"}, {"integrity": "damaged"})
STOPPING: Final = ReadinessReport("stopping", {})


def test_report_is_the_worst_of_all_processes_in_any_order() -> None:
    expected = ReadinessReport("not_ready", {"store": "unavailable", "worker": "ok"}, {"integrity": "damaged"})
    for reports in permutations([READY, AWAY, READY]):
        assert of_all(reports, 3, complete=True) == expected


def test_processes_are_ready_when_all_have_started() -> None:
    notes = {"processes": "1 of 2"}
    assert of_all([READY], 2, complete=False) == ReadinessReport("not_ready", READY.parts, notes)
    assert of_all([READY, READY], 2, complete=True) == READY


@pytest.mark.parametrize("reports", [[READY], [READY, STOPPING], [STOPPING, READY]])
def test_processes_stay_ready_while_one_is_replaced(reports: list[ReadinessReport]) -> None:
    assert of_all(reports, 2, complete=True) == ReadinessReport("ready", READY.parts, {"processes": "1 of 2"})


def test_processes_are_stopping_when_all_are() -> None:
    assert of_all([STOPPING, STOPPING], 2, complete=True) == STOPPING


def counts(server: str, requests: int, last: float | None) -> dict[str, Any]:
    return {"server": server, "requests": requests, "first_token_ms": {"count": 1, "sum": 2.0, "last": last}}


def test_counts_are_summed_alike_by_each_process() -> None:
    some = [counts("b", 1, 3.0), counts("a", 2, None), counts("c", 4, 5.0)]
    for one, two, three in permutations(some):
        assert added(added(one, two), three) == {
            "server": "a+b+c",
            "requests": 7,
            "first_token_ms": {"count": 3, "sum": 6.0, "last": 5.0},
        }


def bucket(at: int, seconds: float, requests: int) -> dict[str, Any]:
    return {"at": at, "seconds": seconds, "requests": requests, "first_token_ms": {"count": 1, "sum": 2.0}}


def test_histories_of_processes_are_summed_alike_by_each_process() -> None:
    some = [
        {"server": "b", "since": 7.5, "buckets": [bucket(30, 30, 1), bucket(60, 5.5, 1)]},
        {"server": "a", "since": 50.0, "buckets": [bucket(60, 5.0, 2)]},
        {"server": "c", "since": 1.0, "buckets": [bucket(0, 30, 4)]},
    ]
    for one, two, three in permutations(some):
        both = history_of_both(history_of_both(one, two), three)
        assert (both["server"], both["since"]) == ("a+b+c", 50.0)
        assert [(each["at"], each["seconds"], each["requests"]) for each in both["buckets"]] == [
            (0, 30, 4),
            (30, 30, 1),
            (60, 5.5, 3),
        ]
