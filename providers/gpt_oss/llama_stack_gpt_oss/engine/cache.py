"""Who holds which page of the KV store, and which pages hold a prefix that others can use. Numbers only, no tensors."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

PAGE = 64  # tokens

Key = bytes


def next_key(parent: Key, tokens: Sequence[int]) -> Key:
    """The name of a full page: its tokens and, through the parent's name, all tokens before it."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class Pages:
    """Every page is blank, idle (nobody uses it, and its prefix can be used again) or used by one or more."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._users = [0] * count
        self._keys: list[Key | None] = [None] * count
        self._by_key: dict[Key, int] = {}
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

    def share(self, key: Key) -> int | None:
        """One more user of the page of that name, if there is one."""
        page = self._by_key.get(key)
        if page is not None:
            self._idle.pop(page, None)
            self._users[page] += 1
        return page

    def publish(self, page: int, key: Key) -> None:
        """The page is full and computed: others may share it. Where two computed the same, the first is kept."""
        if self._keys[page] is None and key not in self._by_key:
            self._keys[page] = key
            self._by_key[key] = page

    def release(self, page: int) -> None:
        """One user less."""
        self._users[page] -= 1
        if self._users[page]:
            return
        if self._keys[page] is None:
            self._blank.append(page)
        else:
            self._idle[page] = None

    def _forget(self, page: int) -> None:
        key = self._keys[page]
        if key is not None:
            del self._by_key[key]
            self._keys[page] = None


@dataclass(slots=True)
class Holding:
    """The pages of one sequence in order, and the names of those that are full and computed."""

    salt: Key
    pages: list[int] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)

    @property
    def last_key(self) -> Key:
        return self.keys[-1] if self.keys else self.salt


class Cache:
    """Gives sequences their pages. Sequences with another salt never share one."""

    def __init__(self, pages: int) -> None:
        self.pages = Pages(pages)
        self.asked_tokens = 0
        self.found_tokens = 0

    def open(self, tokens: Sequence[int], salt: str) -> tuple[Holding, int]:
        """A holding that begins with the longest known prefix, and how many tokens that is.

        It never covers the last token, whose logits somebody wants.
        """
        holding = Holding(hashlib.blake2b(salt.encode(), digest_size=16).digest())
        for start in range(0, len(tokens) - PAGE, PAGE):
            key = next_key(holding.last_key, tokens[start : start + PAGE])
            page = self.pages.share(key)
            if page is None:
                break
            holding.pages.append(page)
            holding.keys.append(key)
        found = len(holding.pages) * PAGE
        self.asked_tokens += len(tokens)
        self.found_tokens += found
        return holding, found

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Room for so many tokens in all; False, with nothing changed, when too few pages are available."""
        missing = -(-tokens // PAGE) - len(holding.pages)
        if missing > self.pages.available:
            return False
        holding.pages.extend(self.pages.take() for _ in range(missing))
        return True

    def commit(self, holding: Holding, tokens: Sequence[int], computed: int) -> None:
        """The first `computed` tokens are in the store: the pages they fill can be shared from now on."""
        while (len(holding.keys) + 1) * PAGE <= computed:
            number = len(holding.keys)
            key = next_key(holding.last_key, tokens[number * PAGE : (number + 1) * PAGE])
            self.pages.publish(holding.pages[number], key)
            holding.keys.append(key)

    def close(self, holding: Holding) -> None:
        """Gives all pages back; of a prefix, the end is forgotten before the beginning."""
        for page in reversed(holding.pages):
            self.pages.release(page)
        holding.pages.clear()
        holding.keys.clear()
