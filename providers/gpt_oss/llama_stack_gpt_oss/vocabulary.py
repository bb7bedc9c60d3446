"""The vocabulary of a checkpoint, from its own tokenizer.json: nothing is fetched, so no network is needed."""

import base64
import codecs
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from openai_harmony import HarmonyEncoding, HarmonyEncodingName, HarmonyError, load_harmony_encoding

from .engine.errors import CheckpointError

TOKENIZER = "tokenizer.json"
_RANKS = "o200k_base.tiktoken"
_RANKS_FOLDER = "TIKTOKEN_ENCODINGS_BASE"

# How o200k splits text into words before it looks for tokens.
SPLIT = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


@dataclass(frozen=True)
class Vocabulary:
    """`words` are the bytes of the ordinary tokens by id; `special` the ids of the others by name."""

    words: tuple[bytes, ...]
    special: Mapping[str, int]

    @cached_property
    def harmony(self) -> HarmonyEncoding:
        """OpenAI's own renderer on this vocabulary; CheckpointError if it is not Harmony's."""
        with tempfile.TemporaryDirectory() as folder, _environment(_RANKS_FOLDER, folder):
            (Path(folder) / _RANKS).write_bytes(ranks_file(self.words))
            try:
                return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
            except (HarmonyError, OSError) as error:
                raise CheckpointError(f"{TOKENIZER} does not hold gpt-oss's vocabulary: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Text to ordinary tokens alone: what looks like a special token in it stays text."""
        return self.harmony.encode(text, disallowed_special=())

    def decoder(self) -> codecs.IncrementalDecoder:
        """Bytes to text, however characters are cut; what is no UTF-8 is shown as such."""
        return codecs.getincrementaldecoder("utf-8")("replace")

    @cached_property
    def names(self) -> Mapping[int, str]:
        """The special tokens by id."""
        return {number: name for name, number in self.special.items()}

    def name_of(self, token: int) -> str:
        """How a special token is written; an id without meaning has no name."""
        return self.names.get(token, "")

    def knows(self, token: int) -> bool:
        """Whether an id has a meaning, and thus a row in the model's embedding."""
        return 0 <= token < len(self.words) or token in self.names

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes of an ordinary token; None for a special one and for an id without meaning."""
        return self.words[token] if 0 <= token < len(self.words) else None


def find_tokenizer(folder: Path) -> Path:
    """tokenizer.json of the checkpoint; the `original/` layout keeps it in the folder above."""
    for candidate in (folder / TOKENIZER, folder.parent / TOKENIZER):
        if candidate.is_file():
            return candidate
    raise CheckpointError(f"{folder} has no {TOKENIZER}: download it from the same place as the weights")


def read_vocabulary(folder: Path) -> Vocabulary:
    """Reads the vocabulary of a checkpoint; CheckpointError if there is none or it is not a byte-level one."""
    path = find_tokenizer(folder)
    try:
        raw: dict[str, Any] = json.loads(path.read_bytes())
        special = {token["content"]: int(token["id"]) for token in raw["added_tokens"]}
        ids: dict[str, int] = raw["model"]["vocab"]
        ranked = sorted((number, word) for word, number in ids.items() if word not in special)
        words = tuple(bytes(map(_BYTES.__getitem__, word)) for _, word in ranked)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error!r}): download it again") from None
    if [number for number, _ in ranked] != list(range(len(ranked))):
        raise CheckpointError(f"{path} leaves out token ids: download it again")
    return Vocabulary(words, special)


def ranks_file(words: tuple[bytes, ...]) -> bytes:
    """The vocabulary as tiktoken stores it: a token in base64 and its rank on each line."""
    return b"".join(b"%s %d\n" % (base64.b64encode(word), rank) for rank, word in enumerate(words))


def _byte_letters() -> dict[str, int]:
    """tokenizer.json writes each byte as a printable letter: itself where it is one, else a letter from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_letters()


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """openai-harmony looks for its file where this variable says, and nowhere else that a caller could name."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
