"""A change is made to other requests once two responses needed it, and not once a server takes what it had refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_stack_responses.chat.adaptation.evidence import DAY, MAX_CASES, TAKEN_SECONDS, TRIALS, Evidence, Parts
from llama_stack_responses.chat.adaptation.parts import named, request_parts

type Json = dict[str, Any]
type Seen = tuple[Parts, bool, float]
"""A request: its parts, whether the server takes it as it is, and the seconds since the one before."""

PART: Final = "temperature"
OTHERS: Final = ("tools", "stream", "image_url", "response_format", "reasoning_effort")
NOW: Final = 1_000.0


def parts(*names: str) -> Parts:
    """Return the parts of a request that also has the part that is looked at."""
    return frozenset((PART, *names))


class Server:
    """A model server that is asked as the evidence says.

    Attributes:
        refused: the requests that it refused.
        evidence: what has been seen.
    """

    def __init__(self) -> None:
        self.refused = list[Parts]()
        self.evidence, self.now = Evidence(), NOW

    def ask(self, has: Parts, takes: Callable[[Parts], bool], seconds: float = 0.0) -> bool:
        """Send a request; return whether it was sent as it is in the end."""
        self.now += seconds
        values = frozenset(each for each in has if each.startswith(f"{PART}="))
        if self.evidence.action(has, self.now, values) == "change":
            return False
        if takes(has):
            self.evidence = self.evidence.accepted(has, self.now)
            return True
        self.refused.append(has)
        self.evidence = self.evidence.refused(has, self.now, values)
        return False


def never(_: Parts) -> bool:
    """Refuse all."""
    return False


def always(_: Parts) -> bool:
    """Take all."""
    return True


def without(*names: str) -> Callable[[Parts], bool]:
    """Return a server that refuses requests with all of these parts."""
    return lambda has: not has >= frozenset(names)


def test_one_refusal_takes_nothing_from_other_requests() -> None:
    server = Server()
    server.ask(parts(), never)
    assert server.ask(parts(), always)


def test_two_refusals_change_requests_until_it_is_tried_again() -> None:
    server, sent = Server(), list[int]()
    for seconds in (0, 0, *TRIALS[:-1]):
        server.ask(parts(), never, seconds)
        before = len(server.refused)
        for _ in range(5):
            server.ask(parts("stream"), never)
        sent.append(len(server.refused) - before)
    assert sent == [1, 0, 0, 0]
    assert len(server.refused) == 2 + len(TRIALS[:-1])
    for _ in range(5):
        before = len(server.refused)
        server.ask(parts(), never, TRIALS[-1] - 1)
        assert len(server.refused) == before
        server.ask(parts(), never, 1)
        assert len(server.refused) == before + 1, "the longest interval is an hour"


def test_request_that_is_taken_when_it_is_tried_ends_the_change_at_once() -> None:
    server = Server()
    server.ask(parts(), never)
    server.ask(parts(), never)
    assert not server.ask(parts(), always, TRIALS[0] - 1)
    assert server.ask(parts(), always, 1)
    assert server.ask(parts(), always)


def test_two_parts_are_refused_together_and_each_alone_is_sent() -> None:
    server = Server()
    takes = without(PART, "reasoning_effort")
    for _ in range(2):
        server.ask(parts("reasoning_effort", "stream"), takes)
    assert server.ask(parts("stream"), takes)
    for _ in range(10):
        assert not server.ask(parts("reasoning_effort", "stream"), takes)
        assert not server.ask(parts("reasoning_effort", "stream", "tools"), takes)
    assert len(server.refused) == 2


def test_other_set_of_parts_has_its_own_evidence() -> None:
    """A state that passes may make a single refusal of one part alone, between those of two together."""
    server = Server()
    for _ in range(2):
        server.ask(parts("reasoning_effort"), never)
    server.ask(parts("stream"), never)
    assert server.ask(parts("stream"), always)
    assert not server.ask(parts("reasoning_effort"), always), "the two together are still known"


def test_request_that_was_taken_bars_what_contradicts_it_for_an_hour() -> None:
    server = Server()
    server.ask(parts(), never)
    assert server.ask(parts("image_url"), always)
    for _ in range(5):
        server.ask(parts(), never)
        assert server.ask(parts(), always)
    server.ask(parts(), never, TAKEN_SECONDS + 1)
    server.ask(parts(), never)
    assert not server.ask(parts(), always)


def test_refusals_at_the_same_time_count_once() -> None:
    evidence = Evidence()
    for _ in range(50):
        evidence = evidence.refused(parts(), NOW)
    [case] = evidence.cases
    assert (case.refusals, case.again) == (2, NOW + TRIALS[0])


def test_evidence_expires_after_a_day() -> None:
    evidence = Evidence().refused(parts(), NOW).refused(parts(), NOW)
    assert evidence.action(parts(), NOW + DAY - 1) == "try"
    assert evidence.action(parts(), NOW + DAY) == "send"
    assert evidence.valid(NOW + DAY) == Evidence()


def test_value_that_was_refused_before_takes_no_trial_from_others() -> None:
    """Two values are bad, and one of them comes again and again, such as an image in the history of a thread."""
    server, bad = Server(), [f"{PART}=1", f"{PART}=2"]
    for each in bad:
        server.ask(parts(each), never)
    taken = list[bool]()
    for step in range(2_880):  # a day, each half minute
        server.ask(parts(bad[0]), never, 30)
        if step % 10 == 9:
            taken.append(server.ask(parts(f"{PART}={step}"), always))
    assert all(taken)
    assert len(server.refused) < 60


def test_server_that_refuses_all_of_two_values_is_asked_once_an_hour() -> None:
    server = Server()
    for step in range(2_880):
        server.ask(parts(f"{PART}={step % 2}"), never, 30)
    assert 20 < len(server.refused) < 30


def test_server_that_takes_two_values_again_gets_them_after_an_hour() -> None:
    server = Server()
    for step in range(2_880):
        server.ask(parts(f"{PART}={step % 2}"), never, 30)
    taken = [server.ask(parts(f"{PART}={step % 2}"), always, 30) for step in range(121)]
    assert taken[-1]
    assert not taken[0]


SETS: Final = st.sets(st.sampled_from(OTHERS)).map(lambda names: parts(*names))
SEQUENCES: Final = st.lists(st.tuples(SETS, st.booleans(), st.sampled_from([0.0, 1.0, 61.0, 601.0, 4_000.0])))


def seen(sequence: Iterable[Seen]) -> Server:
    """Return a server that has taken and refused these requests."""
    server = Server()
    for has, taken, seconds in sequence:
        server.ask(has, lambda _, taken=taken: taken, seconds)  # type: ignore[misc]
    return server


@given(SEQUENCES, SETS)
@settings(max_examples=500)
def test_part_is_not_withheld_once_a_request_with_it_was_taken(sequence: list[Seen], has: Parts) -> None:
    """Whatever was seen before, also by another process."""
    server = seen(sequence)
    evidence = server.evidence.accepted(has, server.now)
    assert evidence.action(has, server.now) == "send"
    fewer = [each for each in (has - {name} for name in OTHERS) if each != has]
    assert all(evidence.action(each, server.now) == "send" for each in fewer)


@given(SEQUENCES, SETS)
@settings(max_examples=500)
def test_server_that_takes_all_gets_all_after_one_trial(sequence: list[Seen], has: Parts) -> None:
    server = seen(sequence)
    server.ask(has, always, DAY)
    assert all(server.ask(has, always) for _ in range(3))


@given(st.lists(st.tuples(SETS, st.just(False), st.sampled_from([0.0, 1.0, 61.0])), max_size=300))
@settings(max_examples=200)
def test_server_that_always_refuses_a_part_is_asked_a_few_times_only(sequence: list[Seen]) -> None:
    """Twice for each set of parts that has to be told apart, and once for each trial of one."""
    server = seen(sequence)
    assert len(server.refused) <= 40
    spent = len(server.refused)
    for has, _, _ in sequence:
        server.ask(has, never)
    assert len(server.refused) <= spent + 12


def test_many_sets_of_parts_that_are_refused_are_refused_for_what_they_have_in_common() -> None:
    """Otherwise a server that always refuses a part would be asked for each pair of other parts again and again."""
    server = Server()
    for _ in range(4):
        for pair in combinations(OTHERS, 2):
            server.ask(parts(*pair), never)
            server.ask(parts(*pair), never)
    assert len(server.refused) <= 2 * (MAX_CASES + 1)
    assert not server.ask(parts(), always)


@given(st.lists(st.tuples(SETS, st.just(True), st.sampled_from([0.0, 1.0, 61.0])), max_size=60))
@settings(max_examples=300)
def test_two_parts_that_are_refused_together_never_take_one_alone(sequence: list[Seen]) -> None:
    server, takes = Server(), without(PART, "tools")
    for has, _, seconds in sequence:
        was_sent = server.ask(has, takes, seconds)
        assert was_sent == takes(has), "nothing that the server takes is withheld, at any time"


# The parts of requests

IMAGE: Final = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
PLAIN: Final[Json] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, []),
        ({"stream": False, "tool_choice": "auto", "user": "u", "max_tokens": 5, "n": 1}, []),
        ({"stream": True, "temperature": 0}, ["stream", "temperature"]),
        ({"parallel_tool_calls": False, "tools": []}, ["parallel_tool_calls", "tools"]),
        ({"tools": [{"type": "function", "function": {"strict": True}}]}, ["strict", "tools"]),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, ["image_url"]),
        ({"messages": [{"role": "system", "content": "Be kind."}]}, ["system"]),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, ["calls"]),
    ],
)
def test_parts_of_a_request_have_names(more: Json, names: list[str]) -> None:
    assert named(request_parts(PLAIN | more)) == names


def test_values_and_images_are_told_apart_and_are_not_readable() -> None:
    def differing(one: Json, other: Json) -> set[str]:
        return {each.partition("=")[0] for each in request_parts(PLAIN | one) ^ request_parts(PLAIN | other)}

    assert differing({"temperature": 0.5}, {"temperature": 0.5}) == set()
    assert differing({"temperature": 0.5}, {"temperature": 0.7}) == {"temperature"}
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAB"}}
    messages = [{"messages": [{"role": "user", "content": [each]}]} for each in (IMAGE, other)]
    assert differing(*messages) == {"image_url"}
    secret = request_parts(PLAIN | {"stop": "my secret"} | messages[0])
    assert not any("secret" in each or "base64" in each for each in secret)
