"""The arguments of one call, from fragments that may repeat what was said.

Servers differ in what a fragment is: the next characters, all characters so far, or the whole arguments once more at
the end. Some send an empty object before the arguments, or arguments that are not text. Characters that were passed on
cannot be taken back. So a fragment that can mean two things is kept until the next one, or the end, decides. What
nothing decides is an error.

Sources: vLLM issues 42167, 51697 and pull request 57809 (arguments again at the end, `{}` at the end), openai-agents-js
pull request 712 (`{}` first, Amazon Bedrock), langchainjs pull request 11188 (objects, Cohere), vLLM pull request 54964
(arguments encoded twice).
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from ..core.decoded_arguments import decoded_arguments
from ..stream.json_object_end import JsonObjectEnd

_OPENING: Final = ("{", "[")
_CLOSING: Final = "}] \n\r\t"
"""What some servers send once too often."""
_MARKS: Final = re.compile(r"(?:\s|<[^<>]{0,64}>|```)*+")
"""Marks of a model's own format behind the arguments, such as `</tool_call>`."""
_HELD: Final = ('"', "n", "N", "`", "[", "<", "\ufeff")
"""First characters of arguments that are no object but may stand for one."""
_WRAPPED: Final = re.compile(
    r"[\s\ufeff]*+(?:```\w*+|<[^<>]{0,64}>)?+\s*+(\{.*\})\s*+(?:```|<[^<>]{0,64}>)?+\s*+", re.DOTALL
)
"""An object in a fence or in marks, or behind a byte order mark."""
_OPENED: Final = re.compile(r"[\s\ufeff]*+(?:```\w*+|<[^<>]{0,64}>)?+\s*+(?=\{)")
"""What is before such an object."""
_TEXTS: Final = re.compile(r'(?:\s*+"(?:[^"\\]|\\.)*+"\s*+){2,}+', re.DOTALL)
"""Several JSON strings."""
_HALF_TEXT: Final = re.compile(r'\s*+"(?:[^"\\]|\\.)*+\\?', re.DOTALL)
"""A JSON string without its end."""
_NOTHING: Final = re.compile(r"(?:\s*+(?:null|None))++\s*+")
_STAND_IN: Final = re.compile(r'(?:\s*+(?:null|None|"(?:\{\}|null)?+"|\[\s*+\]))++\s*+(?=\{)')
"""What some servers send before the arguments, in place of an empty object."""
_BEFORE_VALUE: Final = (":", ",", "[")
_COMPARED_CHARACTERS: Final = 2**20
"""Maximum characters of arguments that are kept to compare them."""
_HEADLESS: Final = re.compile(r'\s*+(?:[}\]:,]|"(?:[^"\\]|\\.)*+"\s*+:.*\}\s*+\Z)', re.DOTALL)
"""A text that cannot begin a JSON value and looks like the end of one."""
_PLACEHOLDER_CHARACTERS: Final = 16
_STAND_IN_CHARACTERS: Final = 64
_MARK_CHARACTERS: Final = 256
_MAX_DEPTH: Final = 32


class UnclearArgumentsError(Exception):
    """The arguments can mean several things."""


class HalfArgumentsError(Exception):
    """The arguments ended before they were complete."""


class CallArguments:
    """The arguments of one call.

    Args:
        plain: whether they are text, not JSON, which nothing is known about.

    Attributes:
        whole: whether the JSON value is complete.
        pieces: number of fragments up to its end.
        append: takes a fragment that extends open arguments, and is passed on; a function of Python, since that is done
            for each token. `scan` has to follow after a few.
    """

    __slots__ = (
        "_again",
        "_again_end",
        "_as_object",
        "_begun",
        "_cumulative",
        "_end",
        "_fresh",
        "_named",
        "_nested",
        "_plain",
        "_quoted",
        "_repeated",
        "_scanned",
        "_size",
        "_unsent",
        "append",
        "pieces",
        "whole",
    )

    def __init__(self, *, plain: bool = False) -> None:
        self.whole = False
        self.pieces = 0
        self._plain = self._begun = plain
        self._as_object = self._cumulative = self._quoted = False
        self._end = JsonObjectEnd()
        self._scanned: list[str] = []
        self._fresh: list[str] = []
        self.append = self._fresh.append
        self._size = 0
        self._unsent: list[str] = []
        self._named = False  # whether the last fragment has the name
        self._nested = False  # whether a fragment was taken for a value within the value, though it may begin a call
        self._repeated = ""  # a fragment that has all characters so far, or is another value within them
        self._again: list[str] = []  # what follows the complete value
        self._again_end: JsonObjectEnd | None = None

    @property
    def is_open(self) -> bool:
        """Whether the value has begun and is not complete."""
        return self._begun and not self.whole

    @property
    def has_begun(self) -> bool:
        """Whether there are any arguments."""
        return self._begun

    @property
    def is_held(self) -> bool:
        """Whether there are arguments that `commit` returns, but not `release`."""
        return bool(self._unsent) and not self._quoted

    @property
    def is_extendable(self) -> bool:
        """Whether fragments may be passed on after `extends` has seen them, with `append`."""
        return self.is_open and not (self._cumulative or self._repeated or self._unsent)

    def extends(self, text: str) -> bool:
        """Return whether a fragment only extends open arguments; it is not read."""
        if "}" in text or "{" in text or "]" in text or "[" in text:
            return self._plain or self._stays_open(text)
        return True

    def take(self, written: str, *, as_object: bool = False, may_replace: bool = True, named: bool = False) -> None:
        """Take a fragment.

        Args:
            written: its text.
            as_object: whether the server sent it as JSON.
            may_replace: whether it can be meant in place of an empty object before it.
            named: whether it has the call's name, so that it may begin another call.

        Raises:
            UnclearArgumentsError: it can mean several things.
        """
        self.pieces += not self.whole
        self._named = named
        self._as_object = self._as_object or (as_object and not self._begun)
        self.scan()
        while written:
            written = self._behind_end(written, may_replace) if self.whole else self._within(written, may_replace)

    def release(self) -> str:
        """Return the arguments to pass on now."""
        if self._quoted or (self.whole and (self._as_object or self.is_placeholder())):
            return ""
        return self.commit()

    def commit(self) -> str:
        """Return the arguments to pass on, since nothing will replace them."""
        text = "".join(self._unsent)
        self._unsent.clear()
        return text

    def finish(self, *, cut: bool) -> str:
        """Return the rest of the arguments at the end of the answer.

        Args:
            cut: whether the answer ended early, so that arguments may be incomplete.

        Raises:
            HalfArgumentsError: they are incomplete.
            UnclearArgumentsError: they can mean several things.
        """
        self.scan()
        if self._repeated:
            self._end_repeated()
        if not cut and (self._again or (self._nested and self.whole and not _is_json(self._text()))):
            raise UnclearArgumentsError
        if not cut and self.is_open and not self._plain:
            raise HalfArgumentsError
        if not cut and self._plain and not self._quoted and _HEADLESS.match(self._text()):
            raise UnclearArgumentsError
        return _unquoted(self.commit(), cut=cut) if self._quoted else self.commit()

    def equals(self, other: CallArguments) -> bool:
        """Return whether both are complete and have the same JSON value."""
        return self.whole and other.whole and _same(self._text(), other._text())

    def says(self, written: str) -> bool:
        """Return whether a text has the same JSON value, or the same characters; so has any text if they are long."""
        self.scan()
        return self._size > _COMPARED_CHARACTERS or _same(self._text(), written)

    def repeats(self, written: str) -> bool:
        """Return whether a fragment has all characters so far."""
        self.scan()
        return 0 < self._size <= len(written) and written.startswith(self._text())

    def is_placeholder(self) -> bool:
        """Return whether they are an empty object that other arguments may replace."""
        return bool(self._unsent) and self.is_empty()

    def is_empty(self) -> bool:
        """Return whether they are an object without members."""
        return self._size <= _PLACEHOLDER_CHARACTERS and _is_empty(self._text())

    def scan(self) -> None:
        """Read the fragments that `append` took; none of them ends the value."""
        if not self._fresh:
            return
        text = "".join(self._fresh)
        self._fresh.clear()
        if not self._plain:
            self._end.read(text)
        self._keep(text)

    def _keep(self, text: str) -> None:
        self._size += len(text)
        if self._size <= _COMPARED_CHARACTERS:
            self._scanned.append(text)
        else:
            self._scanned = [text]  # only its end is needed

    def _text(self) -> str:
        """Return the arguments so far; something else if there are more than are kept."""
        if len(self._scanned) > 1:
            self._scanned = ["".join(self._scanned)]
        return self._scanned[0] if self._scanned else ""

    def _stays_open(self, text: str) -> bool:
        self.scan()
        if text.lstrip().startswith(_OPENING) and (self._size <= len(text) or not self._takes_value()):
            return False
        return self._end.copy().read(text) is None

    def _takes_value(self) -> bool:
        """Return whether a bracket may open a value here."""
        if self._end.in_string:
            return True
        last = next((piece for each in reversed(self._scanned) if (piece := each.rstrip())), "")
        return last.endswith(_BEFORE_VALUE)

    def _within(self, written: str, may_replace: bool) -> str:
        """Take a fragment of open arguments; return what is behind their end."""
        if (self._quoted or not self._begun) and self._size <= _STAND_IN_CHARACTERS:
            written = self._behind_stand_in(written, may_replace)
        if self._plain:
            self._add(written)
            return ""
        if not self._begun:
            return self._begin(written)
        if self._cumulative:
            return self._grow(written)
        if repeated := self._repeated:
            self._repeated = ""
            self._cumulative = written.startswith(repeated)
            if not self._cumulative and self._nested:
                raise UnclearArgumentsError
            self._nested = not self._cumulative
            return written if self._cumulative else self._add_json(repeated) + written
        if written.lstrip().startswith(_OPENING):
            return self._open(written)
        return self._add_json(written)

    def _open(self, written: str) -> str:
        """Take a fragment that begins with a bracket: a value within the value, or all characters so far."""
        takes_value, repeats = self._takes_value(), self.repeats(written)
        if takes_value and repeats:
            self._repeated, self._nested = written, self._named
            return ""
        if repeats:
            self._cumulative = True
            return written
        if not takes_value:
            raise UnclearArgumentsError
        self._nested = self._nested or self._named
        return self._add_json(written)

    def _behind_stand_in(self, written: str, may_replace: bool) -> str:
        """Return a fragment without what stands for arguments before it, here or in the fragments so far."""
        text = self._text()
        match = _STAND_IN.match(text + written)
        if match is None:
            return written
        if text.strip() and not may_replace:
            raise UnclearArgumentsError
        self._scanned, self._size, self.pieces = [], 0, 1
        self._unsent.clear()
        self._begun = self._plain = self._quoted = False
        return written[match.end() - len(text) :]

    def _begin(self, written: str) -> str:
        """Take the first fragment that has more than whitespace."""
        self._begun = bool(written.strip())
        self._plain = self._begun and not written.lstrip().startswith("{")
        self._quoted = self._plain and written.lstrip().startswith(_HELD)
        return self._add_json(written) if self._begun and not self._plain else self._add(written)

    def _grow(self, written: str) -> str:
        """Take a fragment that has all characters so far, or fewer."""
        text = self._text()
        if written.startswith(text):
            return self._add_json(written[len(text) :])
        if not text.startswith(written):
            raise UnclearArgumentsError
        return ""

    def _add(self, text: str) -> str:
        self._keep(text)
        self._unsent.append(text)
        return ""

    def _add_json(self, written: str) -> str:
        """Take the next characters up to the end of the value; return the others."""
        end = self._end.read(written)
        self.whole = end is not None
        self._add(written[:end])
        return written[end:] if end is not None else ""

    def _behind_end(self, written: str, may_replace: bool) -> str:
        """Take what follows the complete value; return what is behind that."""
        if self._cumulative and self.repeats(written):
            return written[self._size :]
        if self._again_end is None:
            written = written.lstrip()
            if not written.strip(_CLOSING) or (len(written) <= _MARK_CHARACTERS and _MARKS.fullmatch(written)):
                return ""
            if not written.startswith(_OPENING):
                raise UnclearArgumentsError
            if may_replace and self.is_placeholder():
                return self._replace(written)
            self._again_end = JsonObjectEnd()
        end = self._again_end.read(written)
        self._again.append(written[:end])
        if end is None:
            return ""
        self._compare()
        return written[end:]

    def _replace(self, written: str) -> str:
        """Replace an empty object by what follows it; the opening bracket may have been passed on."""
        text = self._text()
        sent = text[: len(text) - sum(map(len, self._unsent))]
        if sent and not written.startswith(sent.strip()):
            raise UnclearArgumentsError
        self._end, self._scanned, self._size, self.whole = JsonObjectEnd(), [], 0, False
        self._unsent.clear()
        self._begun = bool(sent)
        if sent:
            self._end.read(sent)
            self._keep(sent)
        return written[len(sent.strip()) :]

    def _compare(self) -> None:
        """Drop what followed the value if it says the same, or take it if it says more and nothing was passed on."""
        text, again = self._text(), "".join(self._again)
        self._again.clear()
        self._again_end = None
        if _is_empty(again) or _same(text, again):
            return
        if not (self._as_object and sum(map(len, self._unsent)) == len(text) and _says_more(text, again)):
            raise UnclearArgumentsError
        self._scanned, self._size = [], 0
        self._unsent.clear()
        self._add(again)

    def _end_repeated(self) -> None:
        """Decide about the last fragment: it is the whole value, or the rest of it."""
        repeated, self._repeated = self._repeated, ""
        if JsonObjectEnd().read(repeated) == len(repeated.rstrip()):
            repeated = repeated[self._size :]
        self._add_json(repeated)


def _unquoted(text: str, *, cut: bool) -> str:
    """Return the arguments in a JSON string, which some servers encode twice, in a fence or marks, or alone in a list.

    A null is an empty object. Any other text is returned as it is.

    Args:
        text: the arguments.
        cut: as for `finish`.

    Raises:
        HalfArgumentsError: they are a string or a list that is incomplete.
        UnclearArgumentsError: they are the end of an object, or several.
    """
    if _NOTHING.fullmatch(text):
        return "{}"
    if wrapped := _WRAPPED.fullmatch(text):
        if JsonObjectEnd().read(wrapped[1]) != len(wrapped[1]):
            raise UnclearArgumentsError
        return wrapped[1]
    try:
        inner = decoded_arguments(text)
    except ValueError:
        return _undecoded(text, cut=cut)
    if isinstance(inner, list):
        return text if cut or not any(isinstance(each, dict) for each in inner) else _alone(inner)
    try:
        return inner if isinstance(decoded_arguments(inner), dict) else text
    except (ValueError, TypeError):
        return text


def _undecoded(text: str, *, cut: bool) -> str:
    """Return arguments that are not JSON, unless they are a part of a JSON value; arguments and errors as above."""
    if not cut and (_HALF_TEXT.fullmatch(text) or _is_half_list(text) or _is_half_object(text)):
        raise HalfArgumentsError
    if _HEADLESS.match(text) or _TEXTS.fullmatch(text):
        raise UnclearArgumentsError
    return text


def _alone(values: list[Any]) -> str:
    """Return the only object of a list with objects (ollama issue 17638).

    Raises:
        UnclearArgumentsError: the list has anything else.
    """
    if len(values) != 1 or not isinstance(values[0], dict):
        raise UnclearArgumentsError
    return orjson.dumps(values[0]).decode()


def _is_half_list(text: str) -> bool:
    return text.lstrip().startswith("[") and JsonObjectEnd().read(text) is None


def _is_half_object(text: str) -> bool:
    opened = _OPENED.match(text)
    return opened is not None and JsonObjectEnd().read(text[opened.end() :]) is None


def _is_empty(text: str) -> bool:
    return text.startswith("{") and "".join(text.split()) == "{}"


def _is_json(text: str) -> bool:
    try:
        decoded_arguments(text)
    except ValueError:
        return False
    return True


def _same(one: str, other: str) -> bool:
    """Return whether two texts have the same JSON value."""
    if one == other:
        return True
    try:
        values = [orjson.dumps(decoded_arguments(each), option=orjson.OPT_SORT_KEYS) for each in (one, other)]
    except (ValueError, TypeError):
        return False
    return values[0] == values[1]


def _says_more(text: str, again: str) -> bool:
    """Return whether one JSON value continues another one."""
    try:
        return _continues(decoded_arguments(text), decoded_arguments(again), 0)
    except ValueError:
        return False


def _continues(before: Any, after: Any, depth: int) -> bool:
    if depth > _MAX_DEPTH or type(before) is not type(after):
        return before is None
    if isinstance(before, dict):
        return all(name in after and _continues(each, after[name], depth + 1) for name, each in before.items())
    if isinstance(before, list):
        return len(before) <= len(after) and all(
            _continues(each, now, depth + 1) for each, now in zip(before, after, strict=False)
        )
    return bool(after.startswith(before) if isinstance(before, str) else after == before)
