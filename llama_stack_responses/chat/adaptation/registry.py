"""The table of all kinds of changes, and how they are applied.

A new kind is one `Adaptation` and its place in `ADAPTATIONS`. It is then tried on refusals, remembered, counted, shown,
printed and settable by its name; nothing else has to know it. A dialect of messages is a kind without an argument:
its `asks` yields None once if it answers the refusal, and its `apply` ignores the argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...core.types import Json
from .adaptation import Adaptation, Step
from .calls import CALLS
from .contents import CONTENTS
from .enforced import ENFORCED
from .evidence import Evidence, Parts
from .parameters import DROP, ESSENTIAL, HINTS, MAP, PARAMETERS
from .parts import may_be_together, request_parts, values_of
from .refusal import Refusal
from .roles import ROLES
from .schemas import SCHEMAS
from .streaming import STREAMING, UNSTREAMED

ADAPTATIONS: Final[tuple[Adaptation, ...]] = (*ENFORCED, *CONTENTS, *CALLS, *STREAMING, *ROLES, *SCHEMAS, *PARAMETERS)
"""All kinds, in the order in which they are applied."""

_OF_PARAMETERS: Final = frozenset(each.name for each in PARAMETERS)
_KINDS: Final = {each.name: (number, each) for number, each in enumerate(ADAPTATIONS)}


def in_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return changes in the order in which they are applied, each once, without those of unknown kinds.

    Those of which another one takes the place are left out.
    """
    known = {repr(step): step for step in steps if step.kind in _KINDS}
    gone = {kind for step in known.values() for kind in _former(step.kind)}
    return tuple(sorted((step for step in known.values() if step.kind not in gone), key=lambda s: _KINDS[s.kind][0]))


def _former(kind: str) -> Iterator[str]:
    """Yield the kinds of which a kind takes the place."""
    while kind := _KINDS[kind][1].instead_of:
        yield kind


def walks_messages(steps: Iterable[Step]) -> bool:
    """Return whether one of the changes takes long for a long conversation."""
    return any(_KINDS[step.kind][1].walks_messages or str(step.argument).startswith("messages.") for step in steps)


def adapted(chat: Json, steps: Sequence[Step]) -> tuple[Json, tuple[Step, ...]]:
    """Return the changed chat request, and those of the changes that changed it.

    Args:
        chat: the request, of which no value is changed in place.
        steps: the changes, in order.
    """
    attempt = attempted(chat, Plan(steps))
    return attempt.chat, attempt.applied


def asked_by(refusal: Refusal, chat: Json, tried: Sequence[Step] = ()) -> list[Step]:
    """Return the changes that a refusal of a chat request asks for: several, if it names several places.

    Args:
        refusal: what the model server said.
        chat: the request that it refused.
        tried: the changes that the request has, which are not asked for again.
    """
    asked = [_or_without(Step(each.name, of), tried) for each in ADAPTATIONS for of in each.asks(refusal, chat)]
    past = {kind for step in tried for kind in _former(step.kind)}
    new = [step for step in asked if step not in tried and step.kind not in past]
    if any(map(is_hint, new)):
        # What else the words may mean is tried if the refusal comes again.
        new = [step for step in new if step.kind in _OF_PARAMETERS]
    # Of two parts that are refused together, the one without which the answer is the same is changed first, then the
    # one that only steers.
    new = [step for step in new if step.kind in UNSTREAMED] or [step for step in new if _only_steers(step, chat)] or new
    kinds = {step.kind for step in new}
    return [step for step in new if kinds.isdisjoint(_former(step.kind))]


def _or_without(step: Step, tried: Sequence[Step]) -> Step:
    """Return a change; one that leaves a parameter out if a value is refused that a refusal has named."""
    if step.kind != MAP or step.argument[0] in ESSENTIAL:
        return step
    name, value, _ = step.argument
    named = any(each.kind == MAP and (each.argument[0], each.argument[2]) == (name, value) for each in tried)
    return Step(MAP, (name, value, None)) if named else step


def _only_steers(step: Step, chat: Json) -> bool:
    """Return whether a change is of a parameter without which the answer is of the same kind."""
    name = step.argument if step.kind == DROP else step.argument[0] if step.kind == MAP else ""
    return name in chat and name not in ESSENTIAL


def is_remembered(step: Step) -> bool:
    """Return whether a change that has helped is made to other requests."""
    return _KINDS[step.kind][1].lasts


def withholds(step: Step) -> bool:
    """Return whether a change takes something from an answer, so that one refusal does not show that others need it."""
    of_messages = step.kind == DROP and step.argument.startswith("messages.")
    return _KINDS[step.kind][1].withholds and not is_hint(step) and not of_messages


def is_of_model(step: Step, chat: Json) -> bool:
    """Return whether one refusal of a request shows that its server always needs a change."""
    if not is_remembered(step):
        return False
    return not withholds(step) or not may_be_together(chat, _applied(chat, step))


@dataclass(frozen=True, slots=True)
class Attempt:
    """A chat request that is made.

    Attributes:
        chat: the changed request.
        applied: the changes that changed it, in order.
        parts: the parts of the request before all changes: those of which evidence is.
        taken: those without what the changes have taken that are noted.
        values: by change, the values that it takes away or would take away: of those that are noted, and of those
            that other requests need as well.
        left: the changes that may be needed and were not made, though the request has what they would take from it.
        tried: the one of these that is left out to see whether it is still needed.
    """

    chat: Json
    applied: tuple[Step, ...] = ()
    parts: Parts = frozenset()
    taken: Parts = frozenset()
    values: Mapping[Step, Parts] = field(default_factory=dict)
    left: tuple[Step, ...] = ()
    tried: Step | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a chat request is changed.

    Attributes:
        steps: the changes that are made.
        noted: those of them that its response alone has needed.
        suspected: the changes that are made if the evidence says so.
        now: the time by which that is judged, in seconds since the epoch.
        triable: those of which one may be left out, to see whether it is still needed.
    """

    steps: Sequence[Step]
    noted: Sequence[Step] = ()
    suspected: Mapping[Step, Evidence] = field(default_factory=dict)
    now: float = 0.0
    triable: Collection[Step] = ()


def attempted(chat: Json, plan: Plan) -> Attempt:
    """Return the changed chat request, of which no value is changed in place."""
    whole, parts = chat, request_parts(chat) if plan.suspected or plan.noted else frozenset()
    applied, gone, tried = list[Step](), set[str](), None
    passed, values = list[tuple[Step, Json]](), dict[Step, Parts]()
    for step in in_order([*plan.steps, *plan.suspected]):
        changed = _applied(chat, step)
        if changed is chat:
            continue
        is_made = step in plan.steps
        # Parts are digests of all that is in a request.
        if step in plan.noted or (not is_made and plan.suspected[step].is_confirmed):
            own = request_parts(chat) - request_parts(changed)
            values[step] = values_of(own)
            gone |= own if step in plan.noted else set()
        if not is_made:
            action = plan.suspected[step].action(parts, plan.now, values.get(step, frozenset()))
            if action == "try" and step in plan.triable and tried is None:
                tried = step
            if action == "send" or tried == step:
                passed.append((step, chat))
                continue
        chat = changed
        applied.append(step)
    left = tuple(step for step, before in passed if before is chat or _applied(chat, step) is not chat)
    if tried and tried not in left:
        # Another change takes away what this one does, so that leaving it out would show nothing.
        return attempted(whole, replace(plan, triable=[step for step in plan.triable if step != tried]))
    return Attempt(chat, tuple(applied), parts, parts - gone, values, left, tried)


def _applied(chat: Json, step: Step) -> Json:
    return _KINDS[step.kind][1].apply(chat, step.argument)


def is_hint(step: Step) -> bool:
    """Return whether a change drops a parameter that no answer depends on."""
    return step.kind == DROP and step.argument in HINTS


def changes_of(step: Step) -> str:
    """Return what a change is of: a parameter, or what its kind changes."""
    if step.kind == DROP:
        return str(step.argument)
    return str(step.argument[0]) if step.kind in _OF_PARAMETERS else step.kind


def refusal_names(refusal: Refusal, step: Step) -> bool:
    """Return whether a refusal names a parameter that a change has dropped, renamed or given another value."""
    if step.kind not in dialects():
        names = step.argument if isinstance(step.argument, tuple) else (step.argument,)
        return any(refusal.names(name) for name in names if isinstance(name, str))
    return False


def dialects() -> frozenset[str]:
    """Return the names of the kinds that need no argument, which a profile can name."""
    return frozenset(_KINDS) - _OF_PARAMETERS


def tell(response: Json, steps: Iterable[Step]) -> None:
    """Correct the fields of a response whose chat request was changed in these steps."""
    for step in steps:
        _KINDS[step.kind][1].tell(response, step.argument)
