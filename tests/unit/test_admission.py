"""Shares of a quota: one user, or a few together, never hold what others need."""

from __future__ import annotations

from itertools import count

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner

QUOTA = Quota("running responses", total=4096, per_user=1024)


def fill(admission: Admission, owner: Owner) -> int:
    """Hold single units for a user until one is refused; return how many there are."""

    def take_all() -> None:
        for _ in count():
            admission.acquire(owner, 1)

    held = admission.held
    with pytest.raises(ApiError) as refused:
        take_all()
    assert refused.value.status == 429
    return admission.held - held


def test_users_who_take_all_they_can_leave_room_for_the_next() -> None:
    admission, owners = Admission(QUOTA), [Owner(f"user {number}") for number in range(10)]
    held = [fill(admission, owner) for owner in owners]
    assert held[:3] == [1024, 1024, 1024]
    assert held == sorted(held, reverse=True)
    admission.acquire(Owner("another"), 1)


def test_shares_become_equal_as_units_are_released() -> None:
    admission, owners = Admission(QUOTA), [Owner(f"user {number}") for number in range(6)]
    held = [fill(admission, owner) for owner in owners]
    for _ in range(50):
        for index, owner in enumerate(owners):
            ended = (held[index] + 1) // 2
            admission.release(owner, ended)
            held[index] += fill(admission, owner) - ended
    assert max(held) - min(held) <= 2
    assert min(held) > 4096 // 8


def test_user_who_is_alone_may_have_all_that_a_user_may() -> None:
    admission = Admission(Quota("request bodies", total=100, per_user=100))
    assert fill(admission, Owner("ada")) == 100


def test_first_request_of_a_user_may_take_all_that_is_free() -> None:
    admission = Admission(Quota("request bodies", total=100, per_user=50))
    admission.acquire(Owner("ada"), 40)
    admission.acquire(Owner("bob"), 50)
    with pytest.raises(ApiError) as refused:
        admission.acquire(Owner("eve"), 11)
    assert refused.value.status == 503
    admission.acquire(Owner("eve"), 10)
