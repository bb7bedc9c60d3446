"""Who holds which page of the KV store, and which pages hold a prefix that others can use. Numbers only, no tensors.

A page holds what the layers of one kind keep of PAGE tokens. Layers are of the same kind if they see as many tokens; a
sequence has a table of pages for each kind, and gives back what those of a window no longer see.
"""

import bisect
import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

PAGE = 64  # tokens

Key = bytes
Name = tuple[int, Key]  # of a page that can be shared: its kind, and the key of its place
Windows = tuple[int | None, ...]  # of each kind: how many tokens a token sees, itself included; None for all


def next_key(parent: Key, tokens: Sequence[int]) -> Key:
    """The key of a full place: its tokens and, through the parent's key, all tokens before it."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


def places_filled(tokens: int) -> int:
    """How many places so many tokens take, the last one perhaps in part."""
    return -(-tokens // PAGE)


def places_unseen(computed: int, window: int | None) -> int:
    """How many places at the beginning no token sees that comes after so many."""
    return 0 if window is None else max(0, computed - window + 1) // PAGE


def pages_needed(tokens: int, windows: Windows, step: int) -> int:
    """The most pages that a sequence of so many tokens holds while it is computed, `step` tokens at a time at most."""
    places = places_filled(tokens)
    # In a window: from the first token that the step's first one sees to its last one, wherever a page begins.
    return sum(places if window is None else min(places, places_filled(window + step - 2) + 1) for window in windows)


def longest_sequence(pages: int, windows: Windows, step: int) -> int:
    """Tokens of the longest sequence that always has room when it is alone."""

    def needed(places: int) -> int:
        return pages_needed(places * PAGE, windows, step)

    return PAGE * (bisect.bisect_right(range(pages + 1), pages, key=needed) - 1)


class Pages:
    """Every page is blank, idle (nobody uses it, and its prefix can be used again) or used by one or more."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._users = [0] * count
        self._names: list[Name | None] = [None] * count
        self._by_name: dict[Name, int] = {}
        self._blank = list(range(count - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # the one unused for longest first

    @property
    def available(self) -> int:
        return len(self._blank) + len(self._idle)

    @property
    def used(self) -> int:
        return self.count - self.available

    def take(self) -> int:
        """A page to write; IndexError when none is available. A known prefix is given up only for want of a blank."""
        if self._blank:
            page = self._blank.pop()
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
        else:
            raise IndexError("no page is available")
        self._users[page] = 1
        return page

    def knows(self, name: Name) -> bool:
        """Whether there is a page of that name."""
        return name in self._by_name

    def share(self, name: Name) -> int:
        """One more user of the page of that name; KeyError if there is none."""
        page = self._by_name[name]
        self._idle.pop(page, None)
        self._users[page] += 1
        return page

    def publish(self, page: int, name: Name) -> None:
        """The page is full and computed: others may share it. Where two computed the same, the first is kept."""
        if self._names[page] is None and name not in self._by_name:
            self._names[page] = name
            self._by_name[name] = page

    def release(self, page: int) -> None:
        """One user less."""
        self._users[page] -= 1
        if self._users[page]:
            return
        if self._names[page] is None:
            self._blank.append(page)
        else:
            self._idle[page] = None

    def _forget(self, page: int) -> None:
        name = self._names[page]
        if name is not None:
            del self._by_name[name]
            self._names[page] = None


@dataclass(slots=True)
class Table:
    """A sequence's pages of one kind by their place. Those before `first` are not, or no longer, the sequence's."""

    pages: list[int] = field(default_factory=list)
    first: int = 0


@dataclass(slots=True)
class Holding:
    """The pages of one sequence, a table for each kind, and the keys of its places that are full and computed."""

    salt: Key = b""
    tables: tuple[Table, ...] = ()
    keys: list[Key] = field(default_factory=list)

    @property
    def places(self) -> int:
        return len(self.tables[0].pages) if self.tables else 0

    @property
    def last_key(self) -> Key:
        return self.keys[-1] if self.keys else self.salt


class Cache:
    """Gives sequences their pages. Sequences with another salt never share one."""

    def __init__(self, pages: int, windows: Windows) -> None:
        self.pages = Pages(pages)
        self.windows = windows

    def open(self, tokens: Sequence[int], salt: str) -> tuple[Holding, int]:
        """A holding that begins with the longest known prefix, and how many tokens that is.

        Known is a prefix of which all is there that a token after it sees. It never covers the last token, whose
        logits somebody wants.
        """
        root = hashlib.blake2b(salt.encode(), digest_size=16).digest()
        keys = self._known_prefix(tokens, root)
        holding = Holding(root, tuple(self._shared(kind, keys) for kind in range(len(self.windows))), keys)
        return holding, len(keys) * PAGE

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Room for so many tokens in all; False, with nothing changed, when too few pages are available."""
        missing = places_filled(tokens) - holding.places
        if missing * len(holding.tables) > self.pages.available:
            return False
        for table in holding.tables:
            table.pages.extend(self.pages.take() for _ in range(missing))
        return True

    def commit(self, holding: Holding, tokens: Sequence[int], computed: int) -> None:
        """The first `computed` tokens are in the store.

        The pages that they fill can be shared from now on; those that no later token sees are given back.
        """
        while (len(holding.keys) + 1) * PAGE <= computed:
            place = len(holding.keys)
            key = next_key(holding.last_key, tokens[place * PAGE : (place + 1) * PAGE])
            for kind, table in enumerate(holding.tables):
                self.pages.publish(table.pages[place], (kind, key))
            holding.keys.append(key)
        for table, window in zip(holding.tables, self.windows, strict=True):
            unseen = places_unseen(computed, window)
            for page in table.pages[table.first : unseen]:
                self.pages.release(page)
            table.first = unseen

    def close(self, holding: Holding) -> None:
        """Gives all pages back; of a prefix, the end is forgotten before the beginning."""
        for place in reversed(range(holding.places)):
            for table in holding.tables:
                if place >= table.first:
                    self.pages.release(table.pages[place])
        holding.tables = ()
        holding.keys.clear()

    def _known_prefix(self, tokens: Sequence[int], root: Key) -> list[Key]:
        """The keys of its places."""
        keys = [root]
        known = 0
        runs = [0] * len(self.windows)  # of each kind: how many places up to this one are there, without a gap
        for place, start in enumerate(range(0, len(tokens) - PAGE, PAGE), 1):
            keys.append(next_key(keys[-1], tokens[start : start + PAGE]))
            runs = [run + 1 if self.pages.knows((kind, keys[-1])) else 0 for kind, run in enumerate(runs)]
            if not any(runs):
                break
            unseen = [places_unseen(place * PAGE, window) for window in self.windows]
            if all(run >= place - before for run, before in zip(runs, unseen, strict=True)):
                known = place
        return keys[1 : known + 1]

    def _shared(self, kind: int, keys: Sequence[Key]) -> Table:
        first = places_unseen(len(keys) * PAGE, self.windows[kind])
        nobodys = [0] * first
        return Table(nobodys + [self.pages.share((kind, key)) for key in keys[first:]], first)
