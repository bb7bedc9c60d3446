"""Secrets in place of their placeholders, and placeholders in place of secrets."""

from __future__ import annotations

import binascii
import json
import re
import string
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from urllib.parse import quote, quote_plus

_BASIC: Final = re.compile(r"(basic +)([A-Za-z0-9+/=]+) *", re.IGNORECASE)
_HIDDEN_CHARACTERS: Final = 8
"""Minimum length of a secret that is hidden in what comes back. A shorter one is part of too many other texts."""

_REPEATED_CHARACTERS: Final = 256
_PIECE_BYTES: Final = 2**16
_FORMS_OF_PIECE: Final = 64
"""So many forms of secrets are searched for in a piece of this size; of more forms, in smaller ones."""
_BASE64: Final = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
_JSON_ESCAPES: Final = tuple(
    {ord(each): f"\\u{ord(each):{digits}}" for each in characters}
    for characters, digits in (("", ""), ("<>&", "04x"), ("<>&", "04X"), ("<>&'", "04x"), ("<>&'+`", "04X"))
)
"""What is escaped in JSON beside what has to be: by most; Go and Ruby; Django; PHP; .NET."""
_URL_SAFE_CHARACTERS: Final = ("", "/", "*", "!'()*", ";,/?:@&=+$#!'()*")
"""What is not escaped in URLs: by most; by Python's `quote`; in forms; `encodeURIComponent`; `encodeURI`."""
_PERCENT: Final = re.compile("%[0-9A-F]{2}")
_URL_SAFE: Final = str.maketrans("+/", "-_")


class Placeholders:
    """The placeholders `$NAME` and `${NAME}` of the secrets of one host.

    Args:
        values: the values of its secrets, by name.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        names = "|".join(sorted(values, key=len, reverse=True))
        self._form = re.compile(rf"\$(?:\{{({names})\}}|({names})(?![A-Za-z0-9_]))") if values else None

    def replaced(self, header: str) -> str:
        """Return the value of a header with secrets in place of placeholders, also within the credentials of Basic."""
        if self._form is None:
            return header
        if basic := _BASIC.fullmatch(header):
            try:
                credentials = b64decode(basic[2], validate=True).decode("latin-1")
            except binascii.Error:
                return header
            return basic[1] + b64encode(self._in_text(credentials).encode("latin-1")).decode()
        return self._in_text(header)

    def _in_text(self, text: str) -> str:
        assert self._form
        return self._form.sub(lambda found: self._values[found[1] or found[2]], text)


@dataclass(frozen=True)
class _Form:
    """A secret as it is in a text: with all of its bits, so that a text shows no more than whether it is the secret.

    Attributes:
        before: characters of which one precedes the middle: those with the bits of the secret that it has; empty if
            none precedes it.
        middle: the characters that have bits of the secret only.
        after: characters of which one follows, as `before`.
    """

    before: str
    middle: str
    after: str

    @cached_property
    def period(self) -> str:
        """The shortest end of the middle after which, if it follows, another middle ends; all of it if none is short.

        Middles that overlap in less than a half are found one by one.
        """
        return self.middle[-_period(self.middle) :]

    @cached_property
    def _repeated(self) -> str:
        """The period several times; empty if middles do not overlap."""
        overlaps = len(self.period) < len(self.middle)
        return self.period * (_REPEATED_CHARACTERS // len(self.period) or 1) if overlaps else ""

    def __len__(self) -> int:
        return bool(self.before) + len(self.middle) + bool(self.after)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the beginnings and ends of all that are in a text, in linear time. Those that overlap may be one."""
        at = text.find(self.middle)
        while at >= 0:
            start = at - bool(self.before)
            end = start + len(self)
            if self._repeated and not self.before and not self.after:
                for each in (self._repeated, self.period):
                    while text.startswith(each, end):
                        end += len(each)
                yield start, end
                at = end - len(self.middle)
            elif (
                start >= 0
                and end <= len(text)
                and (not self.before or text[start] in self.before)
                and (not self.after or text[end - 1] in self.after)
            ):
                yield start, end
            if text.startswith(self.period, at + len(self.middle)):
                at += len(self.period)
            else:
                # Another one that overlaps begins in the second half: a search advances by at least that much.
                at = text.find(self.middle, at + 1)


class SecretForms:
    """The secrets of one host, in the forms in which they are hidden. Making it takes time, finding them little.

    Args:
        values: the secrets.

    Attributes:
        longest: the length of the longest form; 1 without any.
        count: the number of forms.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        hidden = _long(values)
        self._forms = [form for value in hidden for form in (*_escaped(value), *_in_base64(value))]
        self._names = [form for value in {each.lower() for each in hidden} for form in _escaped(value)]
        self.longest, self.count = max(map(len, self._forms), default=1), len(self._forms)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the beginnings and ends of all places of a text that are hidden, sorted; they may overlap."""
        return sorted(span for form in self._forms for span in form.spans(text))

    def spans_of_name(self, name: str) -> list[tuple[int, int]]:
        """Return the same for the name of a header in lower case: servers do not keep the case of names."""
        return sorted(span for form in self._names for span in form.spans(name))


class Mask:
    """Hides secrets in a stream of bytes with asterisks of the same length: the size stays.

    It delays the stream by a constant number of bytes. Nothing but an asterisk depends on the secrets: sizes of pieces
    that did would tell how much of a secret a text has guessed.
    """

    def __init__(self, secrets: SecretForms) -> None:
        self._secrets = secrets
        self._delay = secrets.longest - 1
        self._rest = ""
        self._hidden = 0  # how many characters of the rest are part of a secret that began before

    def lines(self, lines: Iterable[bytes]) -> list[bytes]:
        """Return whole lines without secrets, such as the values of headers."""
        # Together: each search for many secrets takes a while, and no secret has the end of a line.
        text = b"\n".join(lines).decode("latin-1")
        return _starred(text, self._secrets.spans(text)).encode("latin-1").split(b"\n")

    def header_names(self, names: Iterable[bytes]) -> list[bytes]:
        """Return names of headers, in lower case, without secrets."""
        text = b"\n".join(names).decode("latin-1")
        return _starred(text, self._secrets.spans_of_name(text)).encode("latin-1").split(b"\n")

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what follows, as `next` returns it, in pieces that take less than a millisecond each."""
        size = max(_PIECE_BYTES // (self._secrets.count // _FORMS_OF_PIECE + 1), 1)
        for at in range(0, len(data), size):
            yield self.next(data[at : at + size])

    def next(self, data: bytes) -> bytes:
        """Return what follows in the stream, without secrets, except for the last bytes, which may begin one."""
        text = self._rest + data.decode("latin-1")
        spans = [(0, self._hidden), *self._secrets.spans(text)]
        size = max(len(text) - self._delay, 0)
        self._rest = text[size:]
        self._hidden = max(0, *(end - size for start, end in spans if start <= size))
        return _starred(text, spans)[:size].encode("latin-1")

    def end(self) -> bytes:
        """Return the last bytes."""
        rest = _starred(self._rest, [(0, self._hidden), *self._secrets.spans(self._rest)])
        self._rest, self._hidden = "", 0
        return rest.encode("latin-1")


class Redaction:
    """Puts placeholders in place of secrets. Making it takes time.

    Args:
        secrets: the secrets' placeholders by their values.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._forms = [(form, secrets[value]) for value in _long(secrets) for form in _escaped(value)]

    def of(self, text: str) -> str:
        """Return a text with placeholders in place of secrets. Overlapping ones are replaced together."""
        shown, at, last = list[str](), 0, ""
        for start, end, placeholder in sorted((*span, name) for form, name in self._forms for span in form.spans(text)):
            if start >= at or placeholder != last:
                shown += (text[at:start], placeholder)
                last = placeholder
            at = max(at, end)
        return "".join([*shown, text[at:]])


def _long(values: Iterable[str]) -> list[str]:
    return [each for each in values if len(each) >= _HIDDEN_CHARACTERS]


def _starred(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return a text with asterisks at these places, which are sorted by their beginnings."""
    shown, at = list[str](), 0
    for start, end in spans:
        if end > at:
            begun = max(start, at)
            shown += (text[at:begun], "*" * (end - begun))
            at = end
    return "".join([*shown, text[at:]])


def _escaped(value: str) -> list[_Form]:
    """Return a text as it is, and as programs of several languages write it in JSON and in URLs."""
    return [_Form("", each, "") for each in {value, *_in_json(value), *_in_urls(value)}]


def _in_json(value: str) -> Iterator[str]:
    """Yield a text as it is in JSON: some escape what HTML gives a meaning, and some slashes."""
    text = json.dumps(value)[1:-1]
    for escapes in _JSON_ESCAPES:
        escaped = text.translate(escapes)
        yield escaped
        yield escaped.replace("/", r"\/")


def _in_urls(value: str) -> Iterator[str]:
    """Yield a text as it is in URLs: what is escaped there differs, and so do the hexadecimal digits."""
    for safe in _URL_SAFE_CHARACTERS:
        for text in (quote(value, safe=safe), quote_plus(value, safe=safe)):
            for tilde in (text, text.replace("~", "%7E")):
                yield tilde
                yield _PERCENT.sub(lambda found: found[0].lower(), tilde)


def _in_base64(value: str) -> list[_Form]:
    """Return the forms of a text as a part of longer ones in base64: one for each offset in a group of 3 bytes."""
    forms = []
    for offset in range(3):
        left = -(offset + len(value)) % 3
        # The characters that differ have bits of what surrounds the text; the outer ones have no others.
        low, high = (b64encode(each * offset + value.encode() + each * left).decode() for each in (b"\x00", b"\xff"))
        low, high = low[offset : len(low) - left], high[offset : len(high) - left]
        before = _between(low[0], high[0]) if offset else ""
        after = _between(low[-1], high[-1]) if left else ""
        middle = low[bool(before) : len(low) - bool(after)]
        forms += [
            _Form(before, each, after) for each in {middle, middle.replace("/", r"\/"), middle.translate(_URL_SAFE)}
        ]
    return forms


def _period(text: str) -> int:
    """Return the shortest distance at which a text continues itself, at most half of its length; else its length."""
    # The first half is next found at this distance: it would continue itself at the greatest common divisor of this
    # distance and a longer one (theorem of Fine and Wilf).
    distance = text.find(text[: (len(text) + 1) // 2], 1)
    return distance if distance > 0 and text.startswith(text[distance:]) else len(text)


def _between(low: str, high: str) -> str:
    """Return the characters of base64 with the bits that these two have in common."""
    least, most = _BASE64.index(low), _BASE64.index(high)
    found = "".join(each for at, each in enumerate(_BASE64) if at & least == least and at | most == most)
    return found + found.translate(_URL_SAFE)
