"""The table of all kinds of changes, and how they are applied.

A new kind is one `Adaptation` and its place in `ADAPTATIONS`. It is then tried on refusals, remembered, counted, shown,
printed and settable by its name; nothing else has to know it. A dialect of messages is a kind without an argument:
its `asks` yields None once if it answers the refusal, and its `apply` ignores the argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ...core.types import Json
from .adaptation import Adaptation, Step
from .calls import CALLS
from .contents import CONTENTS
from .enforced import ENFORCED
from .lasting import is_general, is_of_two, is_passing
from .parameters import DROP, ESSENTIAL, HINTS, PARAMETERS
from .refusal import Refusal
from .roles import ROLES
from .schemas import SCHEMAS
from .streaming import STREAMING

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
    applied: list[Step] = []
    for step in steps:
        changed = _KINDS[step.kind][1].apply(chat, step.argument)
        if changed is not chat:
            chat = changed
            applied.append(step)
    return chat, tuple(applied)


def asked_by(refusal: Refusal, chat: Json, tried: Sequence[Step] = ()) -> list[Step]:
    """Return the changes that a refusal of a chat request asks for: several, if it names several places.

    Args:
        refusal: what the model server said.
        chat: the request that it refused.
        tried: the changes that the request has, which are not asked for again.
    """
    asked = [Step(each.name, argument) for each in ADAPTATIONS for argument in each.asks(refusal, chat)]
    past = {kind for step in tried for kind in _former(step.kind)}
    new = [step for step in asked if step not in tried and step.kind not in past]
    if any(map(is_hint, new)):
        # What else the words may mean is tried if the refusal comes again.
        new = [step for step in new if step.kind in _OF_PARAMETERS]
    if len(new) > 1 and is_of_two(refusal, chat):
        new = [step for step in new if step.kind == DROP and step.argument not in ESSENTIAL] or new
    kinds = {step.kind for step in new}
    return [step for step in new if kinds.isdisjoint(_former(step.kind))]


def lasts(step: Step, refusal: Refusal, chat: Json) -> bool:
    """Return whether a change is remembered that a refusal of a chat request asked for."""
    kind = _KINDS[step.kind][1]
    if not kind.lasts(refusal):
        return False
    return not is_passing(refusal) if kind.of_two or is_hint(step) else is_general(refusal, chat)


def is_hint(step: Step) -> bool:
    """Return whether a change drops a parameter that no answer depends on."""
    return step.kind == DROP and step.argument in HINTS


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
