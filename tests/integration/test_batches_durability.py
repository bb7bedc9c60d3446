"""Two servers that are killed in turn lose no line of a batch, and write none twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.batch_durability import CI, Plan, judge, line, run, said
from tests.support.stack import Host

# Batches and the store do not depend on the host, apart from its files, which test_batches.py has on both.
pytestmark = pytest.mark.one_host


@pytest.mark.live
@pytest.mark.extended
@pytest.mark.parametrize("plan", [CI, replace(CI, store="redis", store_too=True)], ids=["sqlite", "redis"])
def test_repeated_kills_lose_and_repeat_no_line(host: Host, plan: Plan) -> None:
    verdict = run(plan, host)
    assert verdict.kills >= 2
    assert (verdict.missing, verdict.twice, verdict.wrong) == (0, 0, 0)


def test_lines_that_are_missing_twice_or_wrong_are_counted() -> None:
    plan = Plan(60, None, 0, 0, 0)
    whole = [
        {
            "custom_id": line(number)["custom_id"],
            "response": {"body": {"id": f"resp_{number}", "output": [{"content": [{"text": said(number)}]}]}},
        }
        for number in range(60)
    ]
    output = [each for number, each in enumerate(whole) if number % 50]
    errors = [whole[0], whole[50]]
    ended = {"request_counts": {"total": 60, "completed": 58, "failed": 2}}
    assert judge(ended, output, errors, plan) == (0, 0, 0)
    assert judge(ended, output[1:], errors, plan) == (1, 0, 1)
    assert judge(ended, [*output, output[3]], errors, plan) == (0, 2, 1)
    assert judge(ended, output, errors[::-1], plan) == (0, 0, 1)
    exchanged = [output[0] | {"response": output[1]["response"]}, *output[1:]]
    assert judge(ended, exchanged, errors, plan) == (0, 1, 1)
    assert judge({"request_counts": {}}, output, errors, plan) == (0, 0, 1)
