"""What goes wrong in a schedule: how often calls of the store fail, and what becomes of the servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

Fate = Literal["answered", "refused", "unanswered", "late"]
"""What becomes of a call of the store.

`refused` calls never reach it. `unanswered` ones do, but the caller sees an error; `late` ones do after that error.
"""


@dataclass(slots=True)
class Faults:
    """How a schedule treats its servers. All of it stops with `heal`.

    Attributes:
        longest_call: seconds that a call of the store takes at most, one way.
        refused, unanswered, late: probabilities of the fates of a call.
        latest: seconds after which a commit arrives at most that its caller has given up.
        notifications_lost: probability that a notification does not arrive.
        outages: probability that the store is away for a while, in each second.
        kills, pauses, stops: probability that a server is killed, stands still, or is stopped in order, in each second.
        clock_jumps: probability that the clock of a server's machine is set, in each second.
        restarts: seconds after which a server that has ended is started again, at most.
        streams_cut: probability that a client's stream is cut after a batch.
        model_fails: probability that a round of the model is refused or breaks off.
        receiver_fails: probability that a receiver of webhooks does not accept a message.
        behind: seconds by which the replica of a partition is behind its primary, at most.
        failovers: probability that the primary of a partition dies soon after a commit.
        away_until: until then no server reaches the store, in seconds since the epoch.
    """

    longest_call: float = 0.005
    refused: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    latest: float = 2.0
    notifications_lost: float = 0.0
    outages: float = 0.0
    kills: float = 0.0
    pauses: float = 0.0
    stops: float = 0.0
    clock_jumps: float = 0.0
    restarts: float = 10.0
    streams_cut: float = 0.0
    model_fails: float = 0.0
    receiver_fails: float = 0.0
    behind: float = 0.0
    failovers: float = 0.0
    away_until: float = 0.0

    @staticmethod
    def draw(random: Random) -> Faults:
        """Return the faults of a schedule: a third has none but delays, the others some of all."""
        faults = Faults(longest_call=random.choice((0.001, 0.005, 0.05, 0.5)))
        if random.random() < 1 / 3:
            return faults

        def some(most: float) -> float:
            return random.choice((0.0, most / 4, most))

        faults.refused, faults.unanswered, faults.late = some(0.05), some(0.05), some(0.08)
        faults.latest = random.choice((2.0, 10.0, 90.0))
        faults.notifications_lost, faults.outages = some(0.2), some(0.03)
        faults.kills, faults.pauses, faults.stops = some(0.15), some(0.15), some(0.05)
        faults.clock_jumps = some(0.05)
        faults.restarts = random.choice((0.5, 10.0, 30.0))
        faults.streams_cut, faults.model_fails, faults.receiver_fails = some(0.2), some(0.1), some(0.4)
        return faults

    def with_failovers(self, random: Random, behind: Sequence[float] = (0.1, 1.0, 3.0)) -> Faults:
        """Return these faults of a store with replicas: some of its primaries die.

        Args:
            behind: of these, one is how many seconds replicas are behind.
        """
        return replace(self, behind=random.choice(behind), failovers=random.choice((0.02, 0.06, 0.15)))

    @property
    def any(self) -> bool:
        """Whether anything goes wrong at all."""
        return self != Faults(longest_call=self.longest_call, restarts=self.restarts)

    def heal(self) -> None:
        """Let nothing go wrong any more."""
        self.become(Faults(longest_call=min(self.longest_call, 0.05)))

    def become(self, other: Faults) -> None:
        """Let go wrong what goes wrong with `other`."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    def fate(self, random: Random, now: float, *, writes: bool) -> Fate:
        """Return what becomes of a call of the store."""
        if now < self.away_until:
            return "refused"
        chance = random.random()
        if chance < self.refused:
            return "refused"
        if chance < self.refused + self.unanswered:
            return "unanswered"
        if writes and chance < self.refused + self.unanswered + self.late:
            return "late"
        return "answered"
