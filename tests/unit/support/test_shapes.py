"""The comparison of answers with what the documentation shows."""

from typing import Any

import pytest

from tests.support.shapes import differences

SHOWN: dict[str, Any] = {"id": "resp_", "count": 1, "rows": [{"at": 0.5, "of": None}], "more": {"...": "others"}}
ANSWER: dict[str, Any] = {"id": "resp_1", "count": 2.5, "rows": [{"at": 1, "of": "x"}], "more": {"a": 1}}


def test_answer_in_the_shown_form_has_no_differences() -> None:
    assert differences(SHOWN, ANSWER) == []
    assert differences(SHOWN, ANSWER | {"rows": [], "id": None}) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"id": 5}, "$.id is number, shown as str"),
        ({"count": True}, "$.count is boolean, shown as number"),
        ({"rows": [{"at": 1, "of": 2}, {"at": 1}]}, "$.rows[1].of is shown, and is not there"),
        ({"rows": {}}, "$.rows is dict, shown as list"),
        ({"also": 1}, "$.also is not shown"),
    ],
)
def test_answer_in_another_form_is_reported(change: dict[str, Any], expected: str) -> None:
    assert differences(SHOWN, ANSWER | change) == [expected]
