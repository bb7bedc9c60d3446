"""The skills in containers: where their files are, and what the model is shown of them."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from ....core.types import Json
from ..sandbox import DATA
from .archive import MANIFEST, SkillArchive

SKILLS: Final = "skills"
"""The folder of all skills in a container's folder. Each has a subfolder of its name."""

_PIECE_CHARACTERS: Final = 2**18


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that is, or is to be, in a container.

    Attributes:
        digest: differs if the files do.
    """

    name: str
    description: str
    digest: bytes

    @classmethod
    def of(cls, declared: Json) -> Skill:
        """Return the skill that a request contains, given its entry in `skills`. Takes long for large ones."""
        return cls(declared["name"], declared["description"], _digest(declared["source"]["data"]))

    @property
    def folder(self) -> str:
        """The path of its folder, relative to the container's folder."""
        return f"{SKILLS}/{self.name}"


@dataclass(frozen=True, slots=True)
class FoundSkill:
    """A skill that a request declares.

    Attributes:
        skill: what is known of it.
        opened: yields its archive. Raises `InvalidSkill` if it is not an archive, and `ApiError` if the user holds too
            much, or if the skill was deleted.
        unpacked_bytes: the size of its files; None if its archive has yet to be checked.
    """

    skill: Skill
    opened: Callable[[], AbstractAsyncContextManager[SkillArchive]]
    unpacked_bytes: int | None = None


FindSkill = Callable[[Json], Awaitable[FoundSkill]]
"""Returns the skill of an entry of `skills`. Raises `ApiError` 404 if the entry names a skill that does not exist."""


def _digest(data: str) -> bytes:
    """Return the digest of a text, encoded in pieces: each holds the interpreter lock."""
    digest = hashlib.sha256()
    for start in range(0, len(data), _PIECE_CHARACTERS):
        digest.update(data[start : start + _PIECE_CHARACTERS].encode())
    return digest.digest()


def shown(skill: Skill) -> Json:
    """Return a skill as a request declares a local one, `{name, description, path}`."""
    path = f"{DATA}/{skill.folder}/{MANIFEST}"
    return {"name": skill.name, "description": skill.description, "path": path}
