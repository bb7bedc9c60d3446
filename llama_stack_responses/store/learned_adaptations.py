"""What the servers of a store have learned about their model servers.

These are changes of chat requests, what has been seen of changes that may be needed, the sizes of prompts, and the
lengths of contexts.

The row `ms/<server>` has what was learned about the models of one model server. Its name has a digest of the provider's
configuration, so that nothing applies after a change of that. The row expires a day after it was written last, and each
entry a day after it was learned, or an hour if it is a length: the model server may be restarted with another context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..chat.adaptation.adaptation import Step
from ..chat.adaptation.evidence import Case, Evidence
from . import codec
from .content_names import row_key
from .records import Put, Record, Records, VersionIs, committed, pages_of

PREFIX: Final = "ms/"
LEARNED_SECONDS: Final = 86_400.0
"""Seconds for which something learned is valid: model servers are updated."""

CONTEXT_SECONDS: Final = 3_600.0
"""Seconds for which the length of a context is valid."""

MAX_MODELS: Final = 100
"""Models of one model server of which something is kept; those of which something was learned last."""

MAX_STEPS: Final = 64
"""Changes that are kept of one model; those that were learned last."""

MAX_SUSPECTED: Final = 16
"""Changes that may be needed of which something is kept of one model; those of which something was seen last."""

MAX_EVIDENCE_BYTES: Final = 262_144
"""Size of the names of parts in what has been seen of the models of one model server; of the same number of models."""

MAX_OF_KIND: Final = 16
"""Changes of the same kind that are kept of one model: clients may send any number of schemas that are refused."""

_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned about the models of a server.

    Attributes:
        steps: by model, the changes of chat requests, and when each expires: seconds since the epoch.
        corrections: by model, the tokens that its server has reported for each estimated one, and when that expires.
        contexts: by model, the tokens of the context that its server has named in a refusal, and when that expires.
        evidence: by model, what has been seen of changes of chat requests that take something from an answer.
    """

    steps: Mapping[str, Mapping[Step, float]] = field(default_factory=dict)
    corrections: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    contexts: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    evidence: Mapping[str, Mapping[Step, Evidence]] = field(default_factory=dict)

    def changes(self, model: str, now: float) -> list[Step]:
        """Return the changes of a model's chat requests, also those of requests with certain parts alone."""
        known = self.evidence.get(model, {})
        confirmed = (step for step, evidence in known.items() if evidence.valid(now).is_confirmed)
        return [*self.steps.get(model, {}), *confirmed]

    def with_changes(
        self, model: str, steps: Sequence[Step], expires: float, refused: Collection[Step] = ()
    ) -> Learned:
        """Return it with changes of a model's chat requests; arguments as for `with_steps`."""
        changes = with_steps(self.steps.get(model, {}), steps, expires, refused)
        seen = {step: each for step, each in self.evidence.get(model, {}).items() if step not in refused}
        evidence = _with_seen(self.evidence, model, seen)
        return replace(self, steps=_with_last(self.steps, model, changes), evidence=evidence)

    def with_judged(self, model: str, judged: Mapping[Step, Judged]) -> Learned:
        """Return it with what was seen now of changes of a model's chat requests."""
        seen = with_evidence(self.evidence.get(model, {}), judged)
        return replace(self, evidence=_with_seen(self.evidence, model, seen))

    def with_correction(self, model: str, correction: float, expires: float) -> Learned:
        """Return it with another correction of a model's estimates."""
        return replace(self, corrections=_with_last(self.corrections, model, (correction, expires)))

    def with_context(self, model: str, length: int | None, expires: float) -> Learned:
        """Return it with another length of a model's context, in tokens; without one for None."""
        if length is None:
            return replace(self, contexts={name: each for name, each in self.contexts.items() if name != model})
        return replace(self, contexts=_with_last(self.contexts, model, (length, expires)))


def with_steps(
    known: Mapping[Step, float], steps: Sequence[Step], expires: float, refused: Collection[Step] = ()
) -> dict[Step, float]:
    """Return what is known of a model with new changes behind the others, without the first ones if it is too much.

    Args:
        known: the changes, and when each expires.
        steps: the new ones.
        expires: when these expire, in seconds since the epoch.
        refused: changes that the server does not take any more, which are left out.
    """
    kept_before = {step: at for step, at in known.items() if step not in steps and step not in refused}
    changes = kept_before | dict.fromkeys(steps, expires)
    counts, kept = Counter[str](), list[tuple[Step, float]]()
    for step, at in reversed(changes.items()):
        counts[step.kind] += 1
        if counts[step.kind] <= MAX_OF_KIND and len(kept) < MAX_STEPS:
            kept.append((step, at))
    return dict(reversed(kept))


type Judged = Callable[[Evidence], Evidence]
"""Returns what has been seen of a change, with what was seen now."""


def with_evidence(known: Mapping[Step, Evidence], judged: Mapping[Step, Judged]) -> dict[Step, Evidence]:
    """Return what has been seen of the changes of a model, with what was seen now of some of them behind the others.

    The first ones are left out if it is too much, and those of which nothing is left.
    """
    seen = dict(known)
    for step, judge in judged.items():
        before = seen.pop(step, Evidence())
        if (after := judge(before)).cases or after.taken:
            seen[step] = after
    return dict([*seen.items()][-MAX_SUSPECTED:])


class LearnedSteps:
    """Reads and writes what was learned.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    async def of(self, server: str) -> Learned:
        """Return what was learned about a model server, given its name and version in one string.

        Raises:
            ApiError: 503, the store does not answer.
        """
        key = row_key(PREFIX, server)
        now = await self._records.now()
        return _decoded((await self._records.get_many([key])).get(key), now)

    async def add(
        self, server: str, provider: str, model: str, steps: Sequence[Step], refused: Collection[Step] = ()
    ) -> None:
        """Add changes to what was learned about a model; add nothing if others write the row all the time.

        Args:
            server: as for `of`.
            provider: the id of the provider, which people read.
            model: the model's name.
            steps: the changes.
            refused: the changes that are forgotten.

        Raises:
            ApiError: 503, the store does not answer.
        """
        await self._change(
            server, provider, lambda known, now: known.with_changes(model, steps, now + LEARNED_SECONDS, refused)
        )

    async def judge(self, server: str, provider: str, model: str, judged: Mapping[Step, Judged]) -> None:
        """Add what was seen of changes of a model's chat requests; other arguments and errors as for `add`.

        Args:
            server: as for `of`.
            provider: as for `add`.
            model: as for `add`.
            judged: by change, what was seen.
        """
        await self._change(server, provider, lambda known, _: known.with_judged(model, judged))

    async def correct(self, server: str, provider: str, model: str, correction: float) -> None:
        """Replace the correction of a model's estimates; arguments and errors as for `add`."""
        await self._change(
            server, provider, lambda known, now: known.with_correction(model, correction, now + LEARNED_SECONDS)
        )

    async def bound(self, server: str, provider: str, model: str, length: int | None) -> None:
        """Replace the length of a model's context, in tokens, or forget it; arguments and errors as for `add`."""
        await self._change(
            server, provider, lambda known, now: known.with_context(model, length, now + CONTEXT_SECONDS)
        )

    async def _change(self, server: str, provider: str, change: Callable[[Learned, float], Learned]) -> None:
        key = row_key(PREFIX, server)
        for _ in range(_TRIES):
            now = await self._records.now()
            record = (await self._records.get_many([key])).get(key)
            put = Put(key, _encoded(provider, change(_decoded(record, now), now)), now + LEARNED_SECONDS)
            if await committed(self._records, [put], [VersionIs(key, record.version if record else None)]):
                return

    async def all(self) -> AsyncIterator[tuple[str, Learned]]:
        """Yield the id of each provider with what was learned about it."""
        now = await self._records.now()
        async for page in pages_of(self._records, PREFIX):
            for _, record in page:
                yield str(codec.decode(record.value)["provider"]), _decoded(record, now)


def _with_last[Value](known: Mapping[str, Value], model: str, value: Value) -> dict[str, Value]:
    """Return what is known of models with this one behind the others, without the first ones if it is too much."""
    others = [(name, each) for name, each in known.items() if name != model]
    return dict([*others[1 - MAX_MODELS :], (model, value)])


def _with_seen(
    known: Mapping[str, Mapping[Step, Evidence]], model: str, seen: Mapping[Step, Evidence]
) -> dict[str, Mapping[Step, Evidence]]:
    """Return what has been seen of models as `_with_last` does, within a size, and without those with nothing left."""
    kept, size = list[tuple[str, Mapping[Step, Evidence]]](), 0
    for name, each in reversed(_with_last(known, model, seen).items()):
        size += sum(evidence.size for evidence in each.values())
        if size > MAX_EVIDENCE_BYTES:
            break
        kept += [(name, each)] if each else []
    return dict(reversed(kept))


def _encoded(provider: str, known: Learned) -> bytes:
    models = [[model, [[each.kind, each.argument, at] for each, at in of.items()]] for model, of in known.steps.items()]
    corrections = [[model, *each] for model, each in known.corrections.items()]
    contexts = [[model, *each] for model, each in known.contexts.items()]
    evidence = [[model, [_encoded_evidence(*each) for each in of.items()]] for model, of in known.evidence.items()]
    row = {"provider": provider, "models": models, "corrections": corrections, "contexts": contexts}
    return codec.encode({**row, "evidence": evidence})


def _encoded_evidence(step: Step, evidence: Evidence) -> list[Any]:
    cases = [
        [sorted(case.parts), case.refusals, case.again, case.until, case.values, case.repeats, case.repeat_again]
        for case in evidence.cases
    ]
    return [step.kind, step.argument, cases, [[sorted(parts), until] for parts, until in evidence.taken]]


def _decoded_evidence(entry: Any, now: float) -> tuple[Step, Evidence]:
    kind, argument, cases, taken = entry
    evidence = Evidence(
        tuple(Case(frozenset(parts), *map(_frozen, rest)) for parts, *rest in cases),
        tuple((frozenset(parts), until) for parts, until in taken),
    )
    return Step(kind, _frozen(argument)), evidence.valid(now)


def _decoded(record: Record | None, now: float) -> Learned:
    if record is None:
        return Learned()
    row = codec.decode(record.value)
    steps = {
        model: {Step(kind, _frozen(of)): at for kind, of, at in entries if at > now} for model, entries in row["models"]
    }
    # Version 0.1.0 began without corrections, and has no contexts and no evidence.
    corrections, contexts = (_valid(row.get(name, ()), now) for name in ("corrections", "contexts"))
    seen = {model: dict(_decoded_evidence(each, now) for each in of) for model, of in row.get("evidence", ())}
    evidence = {model: {step: each for step, each in of.items() if each != Evidence()} for model, of in seen.items()}
    steps, evidence = ({model: of for model, of in some.items() if of} for some in (steps, evidence))
    return Learned(steps, corrections, contexts, evidence)


def _valid(entries: Any, now: float) -> dict[str, Any]:
    """Return the values of models that have not expired, and when they do."""
    return {model: (value, at) for model, value, at in entries if at > now}


def _frozen(value: Any) -> Any:
    """Return a JSON value with tuples in place of lists."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
