"""The vocabulary of a checkpoint, from its own tokenizer.json: no network is needed."""

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

import tiktoken
from openai_harmony import HarmonyEncoding, HarmonyEncodingName, HarmonyError, load_harmony_encoding

from .engine.errors import CheckpointError

TOKENIZER = "tokenizer.json"
_RANKS = "o200k_base.tiktoken"
_RANKS_FOLDER = "TIKTOKEN_ENCODINGS_BASE"

# o200k's pre-tokenizer pattern, which splits text into words.
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
    """`words` has the bytes of ordinary tokens by id; `special` the ids of special tokens by name."""

    words: tuple[bytes, ...]
    special: Mapping[str, int]

    def load(self) -> None:
        """Build the renderer and the tokenizer, which takes about a second; CheckpointError as for `harmony`."""
        _ = self.harmony, self.answer_start

    @cached_property
    def harmony(self) -> HarmonyEncoding:
        """OpenAI's renderer with this vocabulary; CheckpointError if it is not Harmony's."""
        with tempfile.TemporaryDirectory() as folder, _environment(_RANKS_FOLDER, folder):
            (Path(folder) / _RANKS).write_bytes(ranks_file(self.words))
            try:
                return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
            except (HarmonyError, OSError) as error:
                raise CheckpointError(f"{TOKENIZER} does not hold gpt-oss's vocabulary: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Encode text as ordinary tokens only: names of special tokens stay text. Python's lock is not held."""
        return self._tokenizer.encode_ordinary(text)

    @cached_property
    def answer_start(self) -> list[int]:
        """The end of each prompt: `<|start|>assistant`."""
        return [self.special["<|start|>"], *self.encode("assistant")]

    @cached_property
    def _tokenizer(self) -> tiktoken.Encoding:
        ranks = {word: rank for rank, word in enumerate(self.words)}
        return tiktoken.Encoding("gpt-oss", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens=dict(self.special))

    def decoder(self) -> codecs.IncrementalDecoder:
        """Return an incremental UTF-8 decoder that replaces invalid bytes."""
        return codecs.getincrementaldecoder("utf-8")("replace")

    @cached_property
    def names(self) -> Mapping[int, str]:
        """The special tokens by id."""
        return {number: name for name, number in self.special.items()}

    def name_of(self, token: int) -> str:
        """Return the name of a special token; an empty string for other ids."""
        return self.names.get(token, "")

    def knows(self, token: int) -> bool:
        """Whether an id is a token, and so has a row in the model's embedding."""
        return 0 <= token < len(self.words) or token in self.names

    def bytes_of(self, token: int) -> bytes | None:
        """Return the bytes of an ordinary token; None for special tokens and unknown ids."""
        return self.words[token] if 0 <= token < len(self.words) else None


def find_tokenizer(folder: Path) -> Path:
    """Find the checkpoint's tokenizer.json; the `original/` layout has it in the parent folder."""
    for candidate in (folder / TOKENIZER, folder.parent / TOKENIZER):
        if candidate.is_file():
            return candidate
    raise CheckpointError(f"{folder} has no {TOKENIZER}: download it from the same place as the weights")


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read a checkpoint's vocabulary; CheckpointError if it is missing or not byte-level."""
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
    """Encode the vocabulary in tiktoken's format: a token in base64 and its rank on each line."""
    return b"".join(b"%s %d\n" % (base64.b64encode(word), rank) for rank, word in enumerate(words))


def _byte_letters() -> dict[str, int]:
    """Return tokenizer.json's letter for each byte: itself if printable, otherwise a letter from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_letters()


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable in the block: openai-harmony finds its file by no other parameter."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
