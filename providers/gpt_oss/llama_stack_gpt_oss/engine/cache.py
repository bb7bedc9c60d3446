"""The block manager of a paged KV cache with prefix sharing. It handles block numbers, not tensors.

A block holds the keys and values of BLOCK_TOKENS tokens, for the layers of one KV group. Layers with the same window
form a KV group. A sequence has one block table per KV group, and frees blocks that have left the group's window.
"""

import bisect
import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

BLOCK_TOKENS = 64  # tokens

Key = bytes
Name = tuple[int, Key]  # of a shareable block: its KV group, and the key of its prefix
Windows = tuple[int | None, ...]  # per KV group: how many tokens a token attends to, including itself; None for all


def next_key(parent: Key, tokens: Sequence[int]) -> Key:
    """Return the key of a full block: a hash of its tokens and of the parent's key, so of the whole prefix."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


def blocks_filled(tokens: int) -> int:
    """Return the number of blocks for this number of tokens; the last one may be partly filled."""
    return -(-tokens // BLOCK_TOKENS)


def blocks_unseen(computed: int, window: int | None) -> int:
    """Return the number of leading blocks outside the window of every token after the first `computed`."""
    return 0 if window is None else max(0, computed - window + 1) // BLOCK_TOKENS


def blocks_needed(tokens: int, windows: Windows, step: int) -> int:
    """Return the maximum number of blocks of a sequence of `tokens`, computed in steps of at most `step` tokens."""
    count = blocks_filled(tokens)
    # With a window: from the first token seen by the step's first token to its last one, at any block alignment.
    return sum(count if window is None else min(count, blocks_filled(window + step - 2) + 1) for window in windows)


def longest_sequence(blocks: int, windows: Windows, step: int) -> int:
    """Return the maximum length of a sequence that always fits when it runs alone."""

    def needed(count: int) -> int:
        return blocks_needed(count * BLOCK_TOKENS, windows, step)

    return BLOCK_TOKENS * (bisect.bisect_right(range(blocks + 1), blocks, key=needed) - 1)


class BlockPool:
    """The pool of blocks. A block is blank, idle (unused, but its prefix can be reused), or used by some sequences."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._users = [0] * count
        self._names: list[Name | None] = [None] * count
        self._by_name: dict[Name, int] = {}
        self._blank = list(range(count - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def available(self) -> int:
        return len(self._blank) + len(self._idle)

    @property
    def used(self) -> int:
        return self.count - self.available

    def take(self) -> int:
        """Allocate a block; IndexError if none is available. Cached prefixes are evicted only if no block is blank."""
        if self._blank:
            block = self._blank.pop()
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
        else:
            raise IndexError("no block is available")
        self._users[block] = 1
        return block

    def knows(self, name: Name) -> bool:
        """Whether a block of that name exists."""
        return name in self._by_name

    def acquire(self, name: Name) -> int:
        """Add a user to the block of that name; KeyError if there is none."""
        block = self._by_name[name]
        self._idle.pop(block, None)
        self._users[block] += 1
        return block

    def publish(self, block: int, name: Name) -> None:
        """Make a full, computed block shareable. If an equal block is shareable already, that one stays."""
        if self._names[block] is None and name not in self._by_name:
            self._names[block] = name
            self._by_name[name] = block

    def release(self, block: int) -> None:
        """Remove a user."""
        self._users[block] -= 1
        if self._users[block]:
            return
        if self._names[block] is None:
            self._blank.append(block)
        else:
            self._idle[block] = None

    def _forget(self, block: int) -> None:
        name = self._names[block]
        if name is not None:
            del self._by_name[name]
            self._names[block] = None


@dataclass(slots=True)
class BlockTable:
    """The blocks of a sequence in one KV group, by index. Entries before `first` do not belong to the sequence."""

    blocks: list[int] = field(default_factory=list)
    first: int = 0


@dataclass(slots=True)
class KVCacheBlocks:
    """The blocks of one sequence: a table for each KV group, and the keys of its full, computed blocks.

    due: number of computed tokens from which `Cache.commit` has something to do. room: number of tokens for which
    `Cache.grow` has allocated blocks, at least.
    """

    salt: Key = b""
    tables: tuple[BlockTable, ...] = ()
    keys: list[Key] = field(default_factory=list)
    due: int = 0
    room: int = 0

    @property
    def count(self) -> int:
        return len(self.tables[0].blocks) if self.tables else 0

    @property
    def last_key(self) -> Key:
        return self.keys[-1] if self.keys else self.salt


class Cache:
    """Assigns blocks to sequences. Sequences with different salts never share a block."""

    def __init__(self, blocks: int, windows: Windows) -> None:
        self.pool = BlockPool(blocks)
        self.windows = windows

    def allocate(self, tokens: Sequence[int], salt: str) -> tuple[KVCacheBlocks, int]:
        """Allocate the longest cached prefix; return its blocks and its number of tokens.

        A prefix is cached if all blocks that the next token attends to are. The prefix never includes the last token,
        whose logits are needed.
        """
        root = hashlib.blake2b(salt.encode(errors="surrogatepass"), digest_size=16).digest()
        keys = self._known_prefix(tokens, root)
        blocks = KVCacheBlocks(root, tuple(self._shared(kv_group, keys) for kv_group in range(len(self.windows))), keys)
        return blocks, len(keys) * BLOCK_TOKENS

    def grow(self, blocks: KVCacheBlocks, tokens: int) -> bool:
        """Allocate blocks for `tokens` tokens in all; return False, with nothing changed, if too few are available."""
        missing = blocks_filled(tokens) - blocks.count
        if missing <= 0:
            blocks.room = blocks.count * BLOCK_TOKENS
            return True
        if missing * len(blocks.tables) > self.pool.available:
            return False
        for table in blocks.tables:
            table.blocks.extend(self.pool.take() for _ in range(missing))
        blocks.room = blocks.count * BLOCK_TOKENS
        return True

    def commit(self, blocks: KVCacheBlocks, tokens: Sequence[int], computed: int) -> None:
        """Record that the first `computed` tokens are in the KV cache.

        Their full blocks become shareable, and blocks that have left a window are freed.
        """
        if computed < blocks.due:
            return
        while (len(blocks.keys) + 1) * BLOCK_TOKENS <= computed:
            index = len(blocks.keys)
            key = next_key(blocks.last_key, tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS])
            for kv_group, table in enumerate(blocks.tables):
                self.pool.publish(table.blocks[index], (kv_group, key))
            blocks.keys.append(key)
        for table, window in zip(blocks.tables, self.windows, strict=True):
            unseen = blocks_unseen(computed, window)
            if unseen <= table.first:
                continue
            for block in table.blocks[table.first : unseen]:
                self.pool.release(block)
            table.first = unseen
        leaving = [
            (table.first + 1) * BLOCK_TOKENS + window - 1
            for table, window in zip(blocks.tables, self.windows, strict=True)
            if window is not None
        ]
        blocks.due = min([(len(blocks.keys) + 1) * BLOCK_TOKENS, *leaving])

    def close(self, blocks: KVCacheBlocks) -> None:
        """Free all blocks, last to first, so that the end of a prefix is evicted before its beginning."""
        for index in reversed(range(blocks.count)):
            for table in blocks.tables:
                if index >= table.first:
                    self.pool.release(table.blocks[index])
        blocks.tables = ()
        blocks.keys.clear()
        blocks.room = 0

    def _known_prefix(self, tokens: Sequence[int], root: Key) -> list[Key]:
        """Return the block keys of the longest cached prefix."""
        keys = [root]
        known = 0
        runs = [0] * len(self.windows)  # per KV group: number of consecutive cached blocks that end at this one
        for index, start in enumerate(range(0, len(tokens) - BLOCK_TOKENS, BLOCK_TOKENS), 1):
            keys.append(next_key(keys[-1], tokens[start : start + BLOCK_TOKENS]))
            runs = [run + 1 if self.pool.knows((kv_group, keys[-1])) else 0 for kv_group, run in enumerate(runs)]
            if not any(runs):
                break
            unseen = [blocks_unseen(index * BLOCK_TOKENS, window) for window in self.windows]
            if all(run >= index - before for run, before in zip(runs, unseen, strict=True)):
                known = index
        return keys[1 : known + 1]

    def _shared(self, kv_group: int, keys: Sequence[Key]) -> BlockTable:
        first = blocks_unseen(len(keys) * BLOCK_TOKENS, self.windows[kv_group])
        unused = [0] * first
        return BlockTable(unused + [self.pool.acquire((kv_group, key)) for key in keys[first:]], first)
