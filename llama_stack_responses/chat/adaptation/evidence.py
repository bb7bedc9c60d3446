"""What the refusals and the acceptances of a model server show of one change of chat requests.

A refusal is words, and words are misread: they may be of two parts together, of one value, of one image, or of a state
that passes. What a server takes and what it does not take is certain. So a change that takes something from an answer
is made to other requests only if two responses needed it, only to requests with all the parts that these two had in
common, and only until it is tried again without it: a minute, then ten, then an hour. A request with these parts that
the server takes as it is ends that at once.

Any error of reading therefore costs other requests at most a minute, if the server takes what it seemed to refuse; a
server that goes on to refuse it costs two refused requests for each such set of parts, and one more in an hour.

A request with an image or a value that was among the refused ones shows nothing of others. It is tried at times of its
own, and its refusal does not change when the others are tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

type Parts = frozenset[str]

DAY: Final = 86_400.0
TRIALS: Final = (60.0, 600.0, 3_600.0)
"""Seconds until a request is sent again as it is, after the second, third and any further refusal."""
TAKEN_SECONDS: Final = 3_600.0
"""Seconds for which nothing is learned that contradicts an accepted request."""
_CONFIRMED: Final = 2
MAX_CASES: Final = 4
"""Sets of parts that are kept of one change, and accepted requests that contradict it: the newest."""
_MAX_VALUES: Final = 32
"""Refused values that are kept of one set of parts: the newest."""


@dataclass(frozen=True, slots=True)
class Case:
    """Parts that a model server seems to refuse together.

    Attributes:
        parts: those that all refused requests had.
        refusals: how often they were refused, in different responses.
        again: when a request with them is sent as it is again, in seconds since the epoch.
        until: when that is forgotten.
        values: the values that the change takes away and that were refused, the newest last.
        repeats: how often they were refused again.
        repeat_again: when a request with one of them is sent as it is again, if that is later.
    """

    parts: Parts
    refusals: int
    again: float
    until: float
    values: tuple[str, ...] = ()
    repeats: int = 0
    repeat_again: float = 0.0

    @property
    def is_confirmed(self) -> bool:
        """Whether other requests are changed."""
        return self.refusals >= _CONFIRMED

    def repeated_by(self, values: Parts) -> bool:
        """Return whether a request has a value that was refused before, and that not all refused requests had."""
        return not values.isdisjoint(value for value in self.values if value not in self.parts)

    def due(self, values: Parts) -> float:
        """Return when a request of which the change would take these values is sent as it is again."""
        return max(self.again, self.repeat_again) if self.repeated_by(values) else self.again

    def repeated(self, now: float) -> Case:
        """Return it after one more refusal of a value that was refused before."""
        repeats = self.repeats + 1
        return replace(self, repeats=repeats, repeat_again=now + TRIALS[min(repeats, len(TRIALS) - 1)])


type Action = Literal["send", "change", "try"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one change for one model.

    Attributes:
        cases: the parts with which requests need it, the newest last.
        taken: the parts of requests that the server took without it, and when that is forgotten.
    """

    cases: tuple[Case, ...] = ()
    taken: tuple[tuple[Parts, float], ...] = ()

    @property
    def is_confirmed(self) -> bool:
        """Whether any requests are changed."""
        return any(case.is_confirmed for case in self.cases)

    @property
    def size(self) -> int:
        """The number of characters that the names of parts in it have."""
        sets = [*((*case.parts, *case.values) for case in self.cases), *(parts for parts, _ in self.taken)]
        return sum(len(part) for parts in sets for part in parts)

    def valid(self, now: float) -> Evidence:
        """Return it without what has expired."""
        cases = tuple(case for case in self.cases if case.until > now)
        taken = tuple(each for each in self.taken if each[1] > now)
        return self if (len(cases), len(taken)) == (len(self.cases), len(self.taken)) else Evidence(cases, taken)

    def action(self, parts: Parts, now: float, values: Parts = frozenset()) -> Action:
        """Return what is done with a request: it is sent as it is, changed, or sent as it is to try that again.

        Args:
            parts: what the request has.
            now: the time, in seconds since the epoch.
            values: the values that the change would take away.
        """
        covering = [case for case in self.valid(now).cases if case.is_confirmed and case.parts <= parts]
        if not covering:
            return "send"
        return "try" if all(case.due(values) <= now for case in covering) else "change"

    def refused(self, parts: Parts, now: float, values: Parts = frozenset()) -> Evidence:
        """Return it after a request was refused, and taken with the change; arguments as for `action`."""
        known = self.valid(now)
        covering = [case for case in known.cases if case.is_confirmed and case.parts <= parts]
        if covering:
            closest = max(covering, key=lambda case: len(case.parts))
            if any(case.due(values) > now for case in covering):
                return known  # It was sent before that was known, or beside a request that tries it.
            again = closest.repeated_by(values)
            new = closest.repeated(now) if again else _counted(closest.parts, closest.refusals + 1, now)
            return known._with(closest, _with_values(new, (*closest.values, *values)), now)
        candidates = [case for case in known.cases if not case.is_confirmed]
        for case in sorted(candidates, key=lambda case: -len(case.parts & parts)):
            common = case.parts & parts
            if not known._contradicts(common):
                return known._with(case, _with_values(_counted(common, _CONFIRMED, now), (*case.values, *values)), now)
        return known._with(None, _with_values(_counted(parts, 1, now), values), now)

    def accepted(self, parts: Parts, now: float) -> Evidence:
        """Return it after a request with these parts was taken without the change; the same if that is known."""
        known = self.valid(now)
        cases = tuple(case for case in known.cases if not case.parts <= parts)
        if len(cases) == len(known.cases) and (not cases or known._contradicts(parts)):
            return known
        others = tuple(each for each in known.taken if not each[0] <= parts)
        return Evidence(cases, (*others, (parts, now + TAKEN_SECONDS))[-MAX_CASES:])

    def _contradicts(self, parts: Parts) -> bool:
        """Return whether a request with these parts was taken."""
        return any(parts <= taken for taken, _ in self.taken)

    def _with(self, old: Case | None, new: Case, now: float) -> Evidence:
        """Return it with a case in place of another one, and of those that it covers."""
        others = (case for case in self.cases if case is not old and not _covers(new, case))
        cases = (*others, new)
        if len(cases) <= MAX_CASES:
            return replace(self, cases=cases)
        common = frozenset.intersection(*(case.parts for case in cases))
        # So many sets of parts, of which none was taken, are refused for what all of them have.
        joined = (_with_values(_counted(common, _CONFIRMED, now), [each for case in cases for each in case.values]),)
        return replace(self, cases=cases[1:] if self._contradicts(common) else joined)


def _covers(new: Case, old: Case) -> bool:
    return new.is_confirmed and new.parts < old.parts and new.refusals >= old.refusals


def _counted(parts: Parts, refusals: int, now: float) -> Case:
    trial = TRIALS[min(refusals - _CONFIRMED, len(TRIALS) - 1)] if refusals >= _CONFIRMED else 0.0
    return Case(parts, refusals, now + trial, now + DAY)


def _with_values(case: Case, values: Iterable[str]) -> Case:
    return replace(case, values=tuple(dict.fromkeys(values))[-_MAX_VALUES:])
