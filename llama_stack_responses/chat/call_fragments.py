"""Finds out which fragments of a stream belong to the same call.

OpenAI's streams give each call an index, and its id and name in its first fragment. Other servers give every call the
index 0 or none, send ids and names with each fragment, change ids, or have no ids. A fragment that may be a call of its
own or the last one once more is kept until it is complete. What cannot be told apart is an error.

Sources: ollama issue 15457 (index 0), lmdeploy issue 3412 (ids in each fragment), vLLM issue 44098 (id and name again
at the end), gptscript pull request 374 (no index), LibreChat issue 13987 (another index for the arguments).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Final

from ..core.errors import ApiError, UnusableAnswerError
from ..stream.deltas import ToolCall
from .cleaned_names import without_marks
from .repeated_arguments import CallArguments, HalfArgumentsError, UnclearArgumentsError

OTHER_MESSAGE: Final = "The model server's stream ends with another message than it streamed before."
_NAME_CHARACTERS: Final = 1024
_SHOWN_CHARACTERS: Final = 64
"""Characters of a name that an error quotes."""
_REMEDY: Final = (
    "Check the tool call parser of the model server, or set 'stream: never' in the model's profile, with which the "
    "model server sends each call once."
)


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of a call as it came.

    Attributes:
        index: its index; None if it has none.
        position: its place in the list of its chunk.
        arguments: a part of the arguments, as text.
        as_object: whether the arguments came as JSON instead of text.
        plain: whether the arguments are the text of a custom tool.
    """

    index: int | str | None
    position: int
    call_id: str
    name: str
    arguments: str
    as_object: bool = False
    plain: bool = False


@dataclass(slots=True, eq=False)
class _Call:
    """A call so far.

    Attributes:
        index: the index of its fragments.
        arguments: its arguments.
        name: its name, in which parts may be missing until arguments come.
        ids: its first id, and its last one if the server has changed it.
        rival: the call before it, if this one may be a repetition of it; nothing of it is passed on until then.
        known: whether a fragment of it was passed on.
    """

    key: tuple[int | str, int]
    index: int | str
    arguments: CallArguments
    name: str = ""
    ids: list[str] = field(default_factory=list)
    rival: _Call | None = None
    known: bool = False

    def has_other_id(self, fragment: Fragment) -> bool:
        """Return whether a fragment has another id, from a server that does not change ids within a call."""
        return bool(fragment.call_id) and len(self.ids) == 1 and fragment.call_id != self.ids[0]

    def has_earlier_id(self, fragment: Fragment) -> bool:
        """Return whether a fragment has the first id, after one with another id."""
        return len(self.ids) > 1 and fragment.call_id == self.ids[0]

    def has_same_id(self, fragment: Fragment) -> bool:
        """Return whether a fragment has the id of this call."""
        return len(self.ids) == 1 and fragment.call_id == self.ids[0]

    def is_named(self, name: str) -> bool:
        """Return whether a name is that of this call, without marks around it."""
        return name == self.name or without_marks(name) == without_marks(self.name)


class CallFragments:
    """The calls of one model round.

    Attributes:
        begun: number of calls so far.
    """

    __slots__ = ("_by_id", "_last", "_slots", "begun")

    def __init__(self) -> None:
        self.begun = 0
        self._slots: dict[int | str, list[_Call]] = {}
        self._by_id: dict[str, _Call] = {}
        self._last: _Call | None = None

    @property
    def last(self) -> tuple[tuple[int | str, int], str] | None:
        """The key and the id of the call whose last fragment came last; None before the first call."""
        call = self._last
        return (call.key, call.ids[0] if call.ids else "") if call else None

    def take(self, fragment: Fragment) -> list[ToolCall]:
        """Return what a fragment adds, and what it shows to be complete.

        Raises:
            ApiError: it cannot be told which call it belongs to, or what it means.
        """
        call = self._call_of(fragment)
        before = self._last
        self._last = call
        out = self._committed(call) if fragment.arguments and not (before is call or call.rival) else []
        named_again = bool(fragment.name and call.name) and call.arguments.has_begun and not call.has_same_id(fragment)
        may_replace = not (named_again or call.has_other_id(fragment))
        name = self._note(call, fragment)
        if fragment.arguments:
            try:
                call.arguments.take(
                    fragment.arguments, as_object=fragment.as_object, may_replace=may_replace, named=bool(fragment.name)
                )
            except UnclearArgumentsError:
                raise _unclear(call) from None
        if call.rival:
            if not self._is_separate(call, call.rival):
                return out
            name, call.rival = call.name, None
        text = call.arguments.release()
        if name or text or not call.known:
            call.known = True
            out.append(ToolCall(call.key, name, call.ids[0] if call.ids else "", text))
        return out

    def commit(self) -> list[ToolCall]:
        """Return what was kept although it is complete, since something else follows."""
        return self._committed(None)

    def end(self, *, cut: bool) -> list[ToolCall]:
        """Return the rest of all calls.

        Args:
            cut: whether the answer ended early, so that the last call may be incomplete.

        Raises:
            ApiError: a call is incomplete, or it cannot be told what its fragments mean.
        """
        undecided = [call for call in self._calls() if call.rival]
        rest = {call.key: self._end_of(call, cut=cut) for call in undecided}
        separate = [] if cut else [call for call in undecided if call.rival and self._is_separate(call, call.rival)]
        decided = [call for call in self._calls() if not call.rival]
        out = [ToolCall(call.key, arguments=text) for call in decided if (text := self._end_of(call, cut=cut))]
        out += [ToolCall(call.key, call.name, "".join(call.ids[:1]), rest[call.key]) for call in separate]
        if not cut and (
            nameless := next((call for call in decided if not call.name and call.arguments.has_begun), None)
        ):
            raise _unclear(nameless)
        if not cut:
            self._check_beginnings()
        self._check_repetitions()
        return out

    @property
    def are_whole(self) -> bool:
        """Whether the arguments of each call are a whole JSON object."""
        return all(call.arguments.whole for call in self._calls())

    def repeats(self, fragments: Sequence[Fragment]) -> bool:
        """Return whether the fragments of a chunk are all calls so far once more, with other ids or none."""
        calls = [*self._calls()]
        return len(calls) == len(fragments) > 1 and all(
            call.arguments.whole
            and call.is_named(each.name)
            and each.call_id not in self._by_id
            and call.arguments.says(each.arguments)
            for call, each in zip(calls, fragments, strict=True)
        )

    def lacks(self, fragment: Fragment) -> bool:
        """Return whether no call has the name and the arguments of a fragment, which is a whole call.

        Raises:
            ApiError: nor has one its id, so that it is no repetition.
        """
        if any(call.is_named(fragment.name) and call.arguments.says(fragment.arguments) for call in self._calls()):
            return False
        if fragment.call_id not in self._by_id:
            raise ApiError(502, OTHER_MESSAGE)
        return True

    def _end_of(self, call: _Call, *, cut: bool) -> str:
        """Return the rest of the arguments of a call."""
        try:
            return call.arguments.finish(cut=cut)
        except HalfArgumentsError:
            raise _half(call) from None
        except UnclearArgumentsError:
            raise _unclear(call) from None

    def extendable(self, key: Hashable) -> CallArguments | None:
        """Return the arguments of a call if its next fragments may be passed on without `take`."""
        call = self._last
        return call.arguments if call and call.key == key and not call.rival and call.arguments.is_extendable else None

    def _calls(self) -> Iterable[_Call]:
        return (call for calls in self._slots.values() for call in calls)

    def _committed(self, but: _Call | None) -> list[ToolCall]:
        held = [call for call in self._calls() if call is not but and not call.rival and call.arguments.is_held]
        return [ToolCall(call.key, arguments=call.arguments.commit()) for call in held]

    def _call_of(self, fragment: Fragment) -> _Call:
        """Return the call of a fragment, which may be a new one."""
        call = self._known(fragment)
        if call is None:
            return self._begin(fragment)
        if fragment.call_id and call.has_earlier_id(fragment) and call.arguments.is_open:
            raise _unclear(call)
        if call.rival is None and self._is_another(call, fragment):
            return self._begin(fragment, self._repeated_by(call, fragment))
        if call.arguments.whole and fragment.name and not call.has_same_id(fragment):
            return self._begin(fragment, call)
        return call

    def _known(self, fragment: Fragment) -> _Call | None:
        """Return the call that a fragment continues unless its name or id says that it is another one."""
        known = self._by_id.get(fragment.call_id)
        if known and (not fragment.name or fragment.index is None or known.index == fragment.index):
            return known
        if fragment.index is None and not (fragment.name or fragment.call_id or fragment.position) and self._last:
            return self._last
        calls = self._slots.get(fragment.position if fragment.index is None else fragment.index)
        if calls:
            return calls[-1]
        # A server may count the arguments of a call as another place (LibreChat issue 13987).
        bare = not (fragment.name or fragment.call_id)
        return self._last if bare and self._last and not self._last.arguments.whole else None

    def _is_another(self, call: _Call, fragment: Fragment) -> bool:
        """Return whether a fragment at the place of a call begins another one."""
        arguments, name, written = call.arguments, fragment.name, fragment.arguments
        if call.has_other_id(fragment):
            if not (name and call.is_named(name)):
                return bool(name)
            if not written or not arguments.has_begun:
                return not written  # Arguments that nothing has begun are begun by the first ones, whatever their id.
            # What a server sends once more at the end may have another id; two calls are sent in the same way.
            if arguments.whole and arguments.pieces > 1 and not arguments.is_empty() and arguments.says(written):
                return False
            # Another call of the same function begins with a bracket, what a server sends with changed ids does not.
            return not arguments.is_open or written.lstrip().startswith(("{", "["))
        return bool(name and call.name) and arguments.has_begun and not call.is_named(name)

    def _repeated_by(self, call: _Call, fragment: Fragment) -> _Call | None:
        """Return a call that a fragment at its place, with another id, may repeat: other calls have other places."""
        is_numbered = len(self._slots) > 1 and call.index == fragment.index
        return call if is_numbered and call.arguments.whole and call.is_named(fragment.name) else None

    def _begin(self, fragment: Fragment, rival: _Call | None = None) -> _Call:
        index = fragment.position if fragment.index is None else fragment.index
        calls = self._slots.setdefault(index, [])
        call = _Call((index, len(calls)), index, CallArguments(plain=fragment.plain), rival=rival)
        calls.append(call)
        self.begun += 1
        return call

    def _note(self, call: _Call, fragment: Fragment) -> str:
        """Note the id and the name of a fragment; return what it adds to the name."""
        name, call_id = fragment.name, fragment.call_id
        if call_id and call_id not in call.ids:
            call.ids = [*call.ids[:1], call_id]
            self._by_id.setdefault(call_id, call)
        added = ""
        if name and not call.name:
            added = name
        elif name and not call.arguments.has_begun and not call.is_named(name):
            added = name.removeprefix(call.name)
        call.name += added
        if max(len(call.name), len(call_id)) > _NAME_CHARACTERS:
            raise ApiError(
                502, f"The model server's stream has a call with a name or an id of over {_NAME_CHARACTERS} characters."
            )
        return added

    def _is_separate(self, call: _Call, rival: _Call) -> bool:
        """Return whether a call that has the name of the last one, and no id or another one, is a call of its own.

        If it is a repetition, it is dropped.

        Raises:
            ApiError: it cannot be told.
        """
        if not call.arguments.whole:
            return False
        calls = self._slots[call.index]
        equal = next((each for each in calls if each is not call and _are_equal(each, call)), None)
        if equal is None:
            if rival.arguments.is_placeholder() and not call.ids:
                raise _unclear(call)
            return True
        # A server that sends arguments in pieces sends those of another call in pieces too.
        whole = equal.arguments.pieces > 1 and call.arguments.pieces == 1 and not call.arguments.is_empty()
        if not (len(rival.ids) == 1 or whole or len(self._slots) > 1):
            raise _unclear(call)
        calls.remove(call)
        self._by_id |= dict.fromkeys(call.ids, equal)
        self._last = rival
        return False

    def _check_beginnings(self) -> None:
        """Refuse a call without arguments before one of the same function: it may be that call's, with another id.

        Raises:
            ApiError: there is one.
        """
        for calls in self._slots.values():
            for one, other in pairwise(calls):
                if one.is_named(other.name) and not one.arguments.has_begun and other.arguments.has_begun:
                    raise _unclear(one)

    def _check_repetitions(self) -> None:
        """Refuse a call that came twice with the same id, at different places.

        Raises:
            ApiError: there is one.
        """
        by_id: dict[str, list[_Call]] = {}
        for call in self._calls():
            for call_id in call.ids[:1]:
                by_id.setdefault(call_id, []).append(call)
        for calls in by_id.values():
            for one, other in combinations(calls, 2):
                if _are_equal(one, other):
                    raise _unclear(other)


def _are_equal(one: _Call, other: _Call) -> bool:
    return one.is_named(other.name) and one.arguments.equals(other.arguments)


def _shown(call: _Call) -> str:
    return without_marks(call.name)[:_SHOWN_CHARACTERS]


def _unclear(call: _Call) -> UnusableAnswerError:
    return UnusableAnswerError(
        f"The model server sent a call of the tool '{_shown(call)}' whose parts cannot be told from those of another "
        f"call or a repetition. {_REMEDY}",
    )


def _half(call: _Call) -> UnusableAnswerError:
    return UnusableAnswerError(
        f"The model server ended its answer within the arguments of a call of the tool '{_shown(call)}'. Try again. If "
        f"this repeats, check the tool call parser of the model server.",
    )
