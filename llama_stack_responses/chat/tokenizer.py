"""Tokenizers that a configuration names. All files are read when the server starts."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

Tokenizer = Callable[[str], int]
"""Returns the number of tokens of a text, without those of a chat template."""

_CALL_CHARACTERS: Final = 100_000
"""Maximum characters per call of a tokenizer: longer runs of whitespace overflow the stack of tiktoken's regexes."""


def open_tokenizer(name: str) -> Tokenizer:
    """Return a tokenizer, given the path of a `tokenizer.json` or the name of an encoding of tiktoken.

    Raises:
        ValueError: it is not available; the message states the remedy.
    """
    is_file = name.endswith(".json") or "/" in name
    return _in_pieces(_of_file(name) if is_file else _of_encoding(name))


def _of_file(name: str) -> Tokenizer:
    path = Path(name).expanduser()
    if not path.is_file():
        raise _wrong(f"there is no file '{name}': download the model's tokenizer.json, or correct the path")
    if find_spec("tokenizers") is None:
        raise _not_installed(name, "tokenizers")
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package has no exception class for it
        raise _wrong(f"'{name}' is not a tokenizer.json of Hugging Face ({error}): download it again") from error
    # A file may configure truncation and padding to a fixed length.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # The batch method releases the interpreter lock while it encodes; the method for a single text does not.
    return lambda text: len(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0])


def _of_encoding(name: str) -> Tokenizer:
    if find_spec("tiktoken") is None:
        raise _not_installed(name, "tiktoken")
    import tiktoken

    known = tiktoken.list_encoding_names()
    if name not in known:
        raise _wrong(f"'{name}' is neither the path of a tokenizer.json nor one of {', '.join(known)}")
    try:
        encoding = tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:
        raise _wrong(
            f"the vocabulary of '{name}' is not in the folder that TIKTOKEN_CACHE_DIR names and cannot be downloaded "
            f"({type(error).__name__}): load it where there is a network, and bring the folder"
        ) from error
    return lambda text: len(encoding.encode_ordinary(text))


def _not_installed(name: str, package: str) -> ValueError:
    extra = "llama-stack-responses[tokenizers]"
    return _wrong(f"'{name}' needs the package {package}, which is not installed: pip install '{extra}'")


def _wrong(what: str) -> ValueError:
    return ValueError(f"The setting 'tokenizer' of a profile: {what}.")


def _in_pieces(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer for texts of any length and content; it may count one token too many at each cut."""

    def count(text: str) -> int:
        if not text.isascii():
            text = text.encode(errors="replace").decode()  # tokenizers reject unpaired surrogates
        return sum(tokenizer(text[start : start + _CALL_CHARACTERS]) for start in range(0, len(text), _CALL_CHARACTERS))

    return count
