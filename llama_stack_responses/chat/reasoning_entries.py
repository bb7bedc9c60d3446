"""The entries of lists of reasoning that have to go back to the model server as they came.

OpenRouter, MiniMax and Gemini send `reasoning_details`, LiteLLM sends `thinking_blocks`, and Mistral has `thinking`
parts in its content. In a stream, an entry comes in fragments: its text in pieces, its signature last. The fragments of
an entry have the same type and index. The server checks signatures against the whole text, so fragments are joined
before they go back.

Sources: agno issue 8794 (fragments with one index), the Vercel AI SDK's issue 17930 (Mistral's parts).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

from ..core.types import Json
from .pieces import mended, text

DETAILS: Final = "reasoning_details"
BLOCKS: Final = "thinking_blocks"
PARTS: Final = "content"
MESSAGE: Final = "message"
TOOL_CALL: Final = "tool_call"
"""Places of entries: three lists of a message, the message itself, and a call."""

_ENTRY_BYTES: Final = 1 << 20
"""Maximum size of an entry, without its text."""
_TEXT_NAMES: Final = {"reasoning.text": "text", "reasoning.summary": "summary", "thinking": "thinking"}
"""The member that has the text of an entry, by the type of the entry."""


TEXT_FIELDS: Final = ("reasoning_content", "reasoning", "reasoning_text")
"""Members of a delta or a message that have the text of the reasoning; the last one: GitHub Copilot."""
OPAQUE: Final = "reasoning_opaque"
"""GitHub Copilot's signature of a message (opencode's pull request 8900)."""
SIGNATURES: Final = ("thought_signature", "thought_signatures", "thoughtSignature", OPAQUE)
"""Names of Gemini's signatures: its own API's, those of LiteLLM's `provider_specific_fields`, and Copilot's."""


def text_name(entry: Json) -> str | None:
    """Return the name of the member that has the text of an entry; None if the entry has none."""
    kind = entry.get("type")
    return _TEXT_NAMES.get(kind) if isinstance(kind, str) else None


def is_sealed(entry: Any) -> bool:
    """Return whether an entry is signed or encrypted."""
    return isinstance(entry, dict) and isinstance(entry.get("signature") or entry.get("data"), str)


class ReasoningEntries:
    """Joins the fragments of the entries of one model round.

    Attributes:
        is_open: whether there is an entry that may have further fragments.
        is_said: whether the client was shown text of the open entry.
        have_text: whether an entry has begun that can have a text.
    """

    __slots__ = ("_members", "_own", "_place", "_sealed", "have_text", "is_open", "is_said")

    def __init__(self) -> None:
        self.is_open = self.is_said = self.have_text = False
        self._sealed: set[int] | None = None
        self._place = ""
        self._members: Json = {}
        self._own: list[str] | None = None

    def continues(self, place: str, fragment: Json) -> bool:
        """Return whether a fragment belongs to the entry that is open."""
        before = self._members
        if not self.is_open or place != self._place or fragment.get("type", before.get("type")) != before.get("type"):
            return False
        if text_name(before) is None:
            return False
        if any(fragment.get(name, before.get(name)) != before.get(name) for name in ("index", "id")):
            return False
        # Without an index, a signature is the last of an entry.
        return fragment.get("index") is not None or not before.get("signature")

    def is_known(self, entry: Any) -> bool:
        """Return whether what is signed or encrypted in an entry came before; false if there is nothing of it."""
        if not is_sealed(entry):
            return False
        sealed = hash((entry.get("signature") or entry.get("data"), str(entry.get("id"))))
        self._sealed = self._sealed or set()
        if sealed in self._sealed:
            return True
        self._sealed.add(sealed)
        return False

    def take(self, place: str, fragment: Json, text: str, *, said: bool) -> None:
        """Take a fragment of the open entry, or the first one of another.

        Args:
            place: the list that had it.
            fragment: the fragment.
            text: its text.
            said: whether the client is shown the same text as reasoning, and no other.
        """
        if not self.is_open:
            self.is_open, self.is_said, self._place, self._members = True, False, place, {}
            self._own = None if said else []
        self.is_said = self.is_said or (said and bool(text))
        name = text_name(fragment)
        self.have_text = self.have_text or name is not None
        for member, value in fragment.items():
            if member == name:
                self._members[member] = [] if isinstance(value, list) else ""
            elif value is not None or member not in self._members:
                self._members[member] = value
        if self._own is not None and text:
            self._own.append(text)

    def end(self) -> str | None:
        """Return the open entry, as `Origin.entry` has it; None if there is none, or it cannot go back."""
        if not self.is_open:
            return None
        self.is_open = False
        members, own, self._members, self._own = self._members, self._own, {}, None
        if (name := text_name(members)) and own:
            members[name] = "".join(own)
        return encoded(self._place, members)


def encoded(place: str, value: Json) -> str | None:
    """Return an entry as `Origin.entry` has it; None if it is too large or cannot be encoded."""
    try:
        entry = orjson.dumps([place, value])
    except (orjson.JSONEncodeError, TypeError, RecursionError):
        return None
    return entry.decode() if len(entry) <= _ENTRY_BYTES else None


def decoded(entry: str, said: str) -> tuple[str, Json] | None:
    """Return the place and the value of an entry with its text; None if it is damaged.

    Args:
        entry: the entry.
        said: the reasoning before the entry, since the last one.
    """
    try:
        place, value = orjson.loads(entry)
    except ValueError:
        return None
    if not isinstance(place, str) or not isinstance(value, dict):
        return None
    if (name := text_name(value)) and said and not value.get(name):
        value[name] = [{"type": "text", "text": said}] if isinstance(value.get(name), list) else said
    return place, value


def signatures_in(value: Json, depth: int = 3) -> Json:
    """Return only the thought signatures in an object, where they are; an empty object if there are none.

    Args:
        depth: how many objects around a signature are searched.
    """
    found: Json = {}
    for name, each in value.items():
        if name in SIGNATURES:
            if kept := mended(each) if isinstance(each, str) else each:
                found[name] = kept
        elif isinstance(each, dict) and depth and (inner := signatures_in(each, depth - 1)):
            found[name] = inner
    return found


def joined(entries: Iterable[Json]) -> list[Json]:
    """Return entries, with those that only sign an earlier one joined to it: their text came before other content."""
    out: list[Json] = []
    for entry in entries:
        name = text_name(entry)
        signs = name is not None and not entry.get(name) and entry.get("signature")
        signed = next((each for each in out if signs and _is_unsigned(each, entry)), None)
        if signed is None:
            out.append(entry)
        else:
            signed["signature"] = entry["signature"]
    return out


def _is_unsigned(entry: Json, signature: Json) -> bool:
    same = all(entry.get(name) == signature.get(name) for name in ("type", "index"))
    return same and not entry.get("signature")


def texts_of(entries: Iterable[Any]) -> list[tuple[bool, str]]:
    """Return the texts of `reasoning_details`, each as (is summary, text); an entry without one has an empty text."""
    found = []
    for entry in entries:
        summary = text(entry, "summary")
        found.append((bool(summary), summary or text(entry, "text")))
    return found
