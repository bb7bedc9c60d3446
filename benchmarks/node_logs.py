"""What a cluster has lost by itself, read from the append-only files of its nodes.

A primary acknowledges before its replicas have a commit. If it dies, or is replaced because it does not answer in time,
the commits that it alone had are lost. Each of them is in its append-only file, with the id of the commit, and not in
that of the primary that took over.

The files are compared from mark to mark. A mark is a row that the program writes to each primary while all its replicas
follow it, so that the files of all of them have it. Between two marks, the file of the primary that wrote the second
one has all commits that are left, and a commit that another one has in addition is lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, NamedTuple

from redis.crc import key_slot

from tests.support.cluster import Cluster, Node
from tests.support.waiting import wait_until

NODE_OPTIONS: Final = (
    *("--aof-disable-auto-gc", "yes", "--auto-aof-rewrite-percentage", "0"),
    *("--repl-backlog-size", "256mb", "--cluster-allow-replica-migration", "no"),
)
"""Nodes keep all their files, begin a new one only to copy a primary, and are not given to another primary."""

_MARK: Final = re.compile(rb"\{mark-\d+\}")
_COMMIT: Final = re.compile(rb"\{[^}]*\}:c:")
_SETTLED: Final = b"settled"
"""The value of the row of a commit that is not to be applied any more."""
_USAGE: Final = re.compile(rb"\{[^}]*\}:r:us/")
_RESPONSE: Final = re.compile(rb"resp_[0-9A-Za-z]+")
_ACKNOWLEDGED_MS: Final = 60_000

type Command = Sequence[bytes]


class Commit(NamedTuple):
    """A commit in the file of a node.

    Attributes:
        key: the key of the row with its id.
        keys: all keys that it wrote.
    """

    key: bytes
    keys: Sequence[bytes]


@dataclass
class EngineLosses:
    """What the engine has lost.

    Attributes:
        commits: the number of commits that are in the file of a former primary only.
        rows: the keys that these wrote, by the ids of the responses in them.
        nodes: how many nodes had one of these, at most, by the same ids. If replicas had it, another one took over.
        usage, usage_nodes: those of the commits that wrote rows of usage, and how many nodes had one of them, at most.
        unaudited: the number of times that a file has a gap, so that nothing is known.
        stored: the ids of all responses of which a node has written something.
    """

    commits: int = 0
    rows: dict[str, list[bytes]] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    usage: int = 0
    usage_nodes: int = 0
    unaudited: int = 0
    stored: set[str] = field(default_factory=set)

    @property
    def responses(self) -> Set[str]:
        """The ids of the responses of whose rows something was lost."""
        return self.rows.keys()

    def add(self, commit: Commit, nodes: int) -> None:
        """Count a lost commit that so many nodes had."""
        self.commits += 1
        for response_id in ids_in(commit):
            self.rows.setdefault(response_id, []).extend(commit.keys)
            self.nodes[response_id] = max(nodes, self.nodes.get(response_id, 0))
        if any(map(_USAGE.match, commit.keys)):
            self.usage += 1
            self.usage_nodes = max(nodes, self.usage_nodes)


def ids_in(commit: Commit) -> set[str]:
    """Return the ids of the responses that a commit has written."""
    return {found.decode() for key in commit.keys for found in _RESPONSE.findall(key)}


class Audit:
    """Compares the files of the nodes of a cluster, which were started with `NODE_OPTIONS`.

    Attributes:
        losses: what was lost between the first mark and the last one.
    """

    def __init__(self, cluster: Cluster, replicas: int) -> None:
        self.losses = EngineLosses()
        self._cluster, self._replicas = cluster, replicas
        self._logs = {node: NodeLog(node.folder / "appendonlydir") for node in cluster.nodes}
        self._marks = 0

    def mark(self) -> None:
        """Write a mark to each primary, once all nodes follow, and compare all that was written since the last one."""
        self._marks += 1
        for primary in [node for node in self._cluster.nodes if node.is_primary]:
            replicas = self._cluster.replicas_of(primary)
            value = f"{self._marks}".encode()
            with primary.asking() as client:
                client.set(self._key_at(primary), value)
                acknowledged = client.wait(self._replicas, _ACKNOWLEDGED_MS)
            if acknowledged < self._replicas:
                raise RuntimeError(f"only {acknowledged} replicas follow the primary in {primary.folder}")
            self._compare(primary, replicas, value)

    def _key_at(self, primary: Node) -> str:
        """Return a key for a mark of which this primary has the slot."""
        slots = [part for part in primary.told("CLUSTER SLOTS") if part[2][1] == primary.port]
        names = (f"{{mark-{number}}}" for number in range(100_000))
        return next(
            name for name in names if any(first <= key_slot(name.encode()) <= last for first, last, *_ in slots)
        )

    def _compare(self, primary: Node, replicas: Sequence[Node], mark: bytes) -> None:
        left, gaps = self._logs[primary].until(mark)
        others = [commit for node in replicas for commit in self._logs[node].until(mark)[0]]
        for commit in (*left, *others):
            self.losses.stored |= ids_in(commit)
        if self._marks == 1:
            return
        if gaps:
            self.losses.unaudited += 1
            return
        known, nodes = {commit.key for commit in left}, Counter(commit.key for commit in others)
        for commit in others:
            if commit.key not in known:
                known.add(commit.key)
                self.losses.add(commit, nodes[commit.key])


class NodeLog:
    """The append-only files of a node, in the order in which they were written.

    Args:
        folder: has them, and a manifest.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number, self._offset = 0, 0

    def until(self, mark: bytes) -> tuple[list[Commit], bool]:
        """Return the commits up to the next mark with this value, and whether a file has begun meanwhile.

        What was read is deleted, unless the node still has it.
        """
        begun = self._number
        found: list[Commit] = []

        def reached() -> bool:
            for command in self._commands():
                if command and _MARK.fullmatch(command[0][1]):
                    if command[0][2] == mark:
                        return True
                elif commit := _commit_of(command):
                    found.append(commit)
            return False

        wait_until(reached)
        self._delete_old()
        return found, begun != self._number

    def _commands(self) -> Iterator[Sequence[Command]]:
        """Yield the commands of each transaction that was not read yet, or a single one."""
        numbers = sorted(
            number for number in map(_number_of, self._folder.glob("*.incr.aof")) if number >= self._number
        )
        for number in numbers:
            if number != self._number:
                self._number, self._offset = number, 0
            with next(self._folder.glob(f"*.{number}.incr.aof")).open("rb") as file:
                file.seek(self._offset)
                while (transaction := _transaction(file)) is not None:
                    self._offset = file.tell()
                    yield transaction

    def _delete_old(self) -> None:
        """Delete what the node does not need to start: it keeps all files, and copies of all rows are among them.

        A file that is newer than the manifest is left alone: the node is about to name it there.
        """
        manifest = next(self._folder.glob("*.manifest")).read_text()
        # A line is `file NAME seq NUMBER type KIND`.
        numbers = [(kind, int(number)) for *_, number, _, kind in map(str.split, manifest.splitlines())]
        base = max((number for kind, number in numbers if kind == "b"), default=0)
        oldest = min((number for kind, number in numbers if kind == "i"), default=0)
        for path in self._folder.glob("*.base.*"):
            if _number_of(path) < base:
                path.unlink()
        for path in self._folder.glob("*.incr.aof"):
            if _number_of(path) < min(self._number, oldest):
                path.unlink()


def _number_of(path: Path) -> int:
    """Return the number of a file `NAME.NUMBER.incr.aof` or `NAME.NUMBER.base.rdb`."""
    return int(path.name.split(".")[-3])


def _transaction(file: IO[bytes]) -> Sequence[Command] | None:
    """Read the commands of one transaction, or a single command; return None if it is not complete yet."""
    commands: list[Command] = []
    depth = 0
    while (command := _command(file)) is not None:
        name = command[0].upper()
        depth += (name == b"MULTI") - (name == b"EXEC")
        if name not in (b"MULTI", b"EXEC"):
            commands.append(command)
        if depth == 0:
            return [each for each in commands if len(each) > 1]
    return None


def _command(file: IO[bytes]) -> Command | None:
    """Read one command; return None if it is not complete yet. Notes with a time, `#...`, are left out."""
    while (head := file.readline()).startswith(b"#"):
        pass
    if not head.endswith(b"\n"):
        return None
    words: list[bytes] = []
    for _ in range(int(head[1:])):
        size = file.readline()
        if not size.endswith(b"\n"):
            return None
        length = int(size[1:])
        word = file.read(length + 2)
        if len(word) < length + 2:
            return None
        words.append(word[:length])
    return words


def _commit_of(commands: Sequence[Command]) -> Commit | None:
    """Return the commit that a transaction is; None if it is none."""
    for name, key, *values in commands:
        if name.upper() == b"SET" and _COMMIT.match(key) and values[0] != _SETTLED:
            return Commit(key, tuple(each[1] for each in commands))
    return None
