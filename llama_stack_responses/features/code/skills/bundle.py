"""What is stored of a skill: the archive of the files of a folder, and the name and description in its manifest."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from io import BytesIO
from typing import Final, NamedTuple

from ....concurrency.offloading import in_thread
from ....process_pool.pool import Task, WorkerPool
from .archive import MANIFEST, InvalidSkill, SkillArchive
from .shapes import MAX_DESCRIPTION, MAX_NAME, NAME

_HEAD_BYTES: Final = 8_192
"""Maximum size of the front matter of a manifest."""

_MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8."""

_TASK: Final = "llama_stack_responses.features.code.skills.manifest_task"
_SECONDS: Final = 10.0
_TEXT_BYTES: Final = 2 * _HEAD_BYTES
"""Maximum size of a description, as the process returns it."""

_PROBLEMS: Final = {
    "yaml": f"The front matter of its '{MANIFEST}' is not valid YAML.",
    "mapping": f"The front matter of its '{MANIFEST}' is not a mapping with 'name' and 'description'.",
    "name": f"The front matter of its '{MANIFEST}' has no text as 'name'.",
    "description": f"The front matter of its '{MANIFEST}' has no text as 'description'.",
}
"""What is wrong with the front matter, by the problem that the process reports."""

_FRONT_MATTER: Final = re.compile(rb"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|$)", re.DOTALL)
_WRITTEN: Final = (1980, 1, 1, 0, 0, 0)
"""The time of the files of an archive: equal files make equal archives."""

_SCRIPT: Final = b"#!"
_MODE, _SCRIPT_MODE = 0o100644, 0o100755


class Manifest(NamedTuple):
    """What the front matter of a skill's manifest says to a model that has the skill."""

    name: str
    description: str


async def read_manifest(archive: SkillArchive, pool: WorkerPool) -> Manifest:
    """Return the name and the description in the front matter of a skill's manifest, read in a worker process.

    Args:
        pool: runs the process.

    Raises:
        InvalidSkill: it has no front matter, or one of them is missing or not valid.
        ApiError: 429 or 503, the pool has no room.
    """
    content = await in_thread(_front_matter, archive)
    answer = await pool.run(Task(_TASK, content, _SECONDS, _TEXT_BYTES))
    if problem := answer.get("problem"):
        raise InvalidSkill(_PROBLEMS.get(problem, _PROBLEMS["yaml"]))
    name, description = answer.get("name", ""), answer["text"]
    if not re.fullmatch(NAME, name) or len(name) > MAX_NAME:
        raise InvalidSkill(f"The name in its '{MANIFEST}' is not 1 to {MAX_NAME} letters, digits, '_' and '-'.")
    if len(description) > MAX_DESCRIPTION:
        raise InvalidSkill(f"The description in its '{MANIFEST}' has more than {MAX_DESCRIPTION} characters.")
    return Manifest(name, description)


def packed(files: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a zip archive of these files, each given with its path. Blocks.

    Scripts, which begin with `#!`, are executable.

    Raises:
        InvalidSkill: two files have the same path.
    """
    if len({path for path, _ in files}) < len(files):
        # The module `zipfile` would only warn, with the path, and Python keeps each warning in memory.
        raise InvalidSkill("Two of its files have the same path.")
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, data in files:
            entry = zipfile.ZipInfo(path, _WRITTEN)
            entry.filename = path  # a `ZipInfo` would end it before a NUL, which the archive's check refuses
            entry.create_system = 3  # its modes are those of Unix
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (_SCRIPT_MODE if data.startswith(_SCRIPT) else _MODE) << 16
            archive.writestr(entry, data)
    return content.getvalue()


def _front_matter(archive: SkillArchive) -> bytes:
    [file] = [each for each in archive.files if each.path == MANIFEST]
    found = _FRONT_MATTER.match(archive.read(file).removeprefix(_MARK), 0, _HEAD_BYTES)
    if not found:
        raise InvalidSkill(
            f"Its '{MANIFEST}' must begin with front matter: a line '---', 'name' and 'description' as YAML, and a "
            f"line '---', of {_HEAD_BYTES} bytes at most."
        )
    return found[1]
