"""Tokenizers by file and by name, and errors for missing ones."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from llama_stack_responses.chat.estimate import estimated_tokens
from llama_stack_responses.chat.tokenizer import open_tokenizer

LLAMA_INDEX = find_spec("llama_index.core")
VOCABULARIES = Path(str(LLAMA_INDEX and LLAMA_INDEX.origin)).parent / "_static" / "tiktoken_cache"


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A tokenizer with one token per word, configured to truncate texts after two."""
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def test_tokenizer_file_counts_whole_text(file: str) -> None:
    count = open_tokenizer(file)
    assert [count(text) for text in ("", "one", "one two  three\nfour")] == [0, 1, 4]


def test_any_text_can_be_counted(file: str) -> None:
    count = open_tokenizer(file)
    assert count("cut \ud83d") == 2
    assert count("word " * 100_000) == 100_000
    assert count(" " * 3_000_000) == 0


def test_named_encoding_counts_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(VOCABULARIES))
    count = open_tokenizer("o200k_base")
    assert count("hello world") == 2
    assert count("<|endoftext|>") > 1  # a user's text never counts as a special token
    assert 0 < count(" " * 1_500_000) < 100_000


def test_texts_are_counted_and_structure_is_estimated(file: str) -> None:
    chat = {
        "messages": [
            {"role": "user", "content": "one two three"},
            {"role": "user", "content": [{"image_url": {"url": "data:image/png;base64,AAAA"}}]},
        ],
        "tools": [{"name": "weather"}],
    }
    names = len("rolecontent") * 2 + len("name")
    assert estimated_tokens(chat, open_tokenizer(file)) == (names + 4_000) // 4 + (4 + 1 + 1) + 2 * 4


def test_missing_tokenizer_file_is_reported() -> None:
    with pytest.raises(ValueError, match=r"there is no file 'nowhere/tokenizer\.json': download"):
        open_tokenizer("nowhere/tokenizer.json")


def test_invalid_tokenizer_file_is_reported(tmp_path: Path) -> None:
    wrong = tmp_path / "tokenizer.json"
    wrong.write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json' is not a tokenizer\.json of Hugging Face"):
        open_tokenizer(str(wrong))


def test_unknown_encoding_lists_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'o300k' is neither the path .* o200k_harmony"):
        open_tokenizer("o300k")


@pytest.mark.parametrize("package", ["tokenizers", "tiktoken"])
def test_missing_package_is_reported(package: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    with pytest.raises(ValueError, match=rf"needs the package {package}, .* pip install 'llama-stack-responses\[tok"):
        open_tokenizer(file if package == "tokenizers" else "o200k_base")
