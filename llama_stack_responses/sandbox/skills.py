"""The skills in containers: where their files are, and what the model is shown of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from ..core.types import Json
from .jail import DATA
from .skill_archive import MANIFEST, SkillArchive

SKILLS: Final = "skills"
"""The folder of all skills in a container's folder. Each has a subfolder of its name."""

_PIECE_CHARACTERS: Final = 2**18

OpenArchive = Callable[[str], AbstractAsyncContextManager[SkillArchive]]
"""Yields the archive of a skill from its base64.

Raises `InvalidSkill` if it is not an archive, and `ApiError` if the user holds too much.
"""


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
        """Return the skill of an entry of `skills`. Takes long for large ones."""
        return cls(declared["name"], declared["description"], _digest(declared["source"]["data"]))

    @property
    def folder(self) -> str:
        """The path of its folder, relative to the container's folder."""
        return f"{SKILLS}/{self.name}"


def _digest(data: str) -> bytes:
    """Return the digest of a text, encoded in pieces: each holds the interpreter lock."""
    digest = hashlib.sha256()
    for start in range(0, len(data), _PIECE_CHARACTERS):
        digest.update(data[start : start + _PIECE_CHARACTERS].encode())
    return digest.digest()


def shown(name: str, description: str) -> Json:
    """Return a skill as a request declares a local one, `{name, description, path}`."""
    return {"name": name, "description": description, "path": f"{DATA}/{SKILLS}/{name}/{MANIFEST}"}
