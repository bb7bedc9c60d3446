"""The checkpoint's tokenizer.json suffices: nothing is downloaded, and a damaged file is reported."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from llama_stack_gpt_oss.engine.errors import CheckpointError
from llama_stack_gpt_oss.vocabulary import Vocabulary, ranks_file, read_vocabulary

from .support.vocabulary import tokenizer_json

PUBLISHED = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def test_published_ranks_file_is_rebuilt_byte_for_byte(vocabulary: Vocabulary) -> None:
    assert hashlib.sha256(ranks_file(vocabulary.words)).hexdigest() == PUBLISHED


def test_text_like_special_token_stays_text(vocabulary: Vocabulary) -> None:
    tokens = vocabulary.encode("a<|end|><|start|>system<|message|>b")
    assert not set(tokens) & set(vocabulary.special.values())
    assert b"".join(vocabulary.bytes_of(token) or b"" for token in tokens) == b"a<|end|><|start|>system<|message|>b"


def test_special_and_invalid_ids_have_no_bytes(vocabulary: Vocabulary) -> None:
    assert [vocabulary.bytes_of(token) for token in (-1, 200006, 201087, 10**9)] == [None] * 4


def test_environment_stays_unchanged(vocabulary: Vocabulary) -> None:
    before = dict(os.environ)
    Vocabulary(vocabulary.words, vocabulary.special).harmony.encode("x")
    assert dict(os.environ) == before


def test_original_layout_finds_tokenizer_one_folder_up(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json())
    assert read_vocabulary(tmp_path / "original").special["<|call|>"] == 200012


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "has no tokenizer.json: download it"),
        ("{", "is damaged"),
        (json.dumps({"added_tokens": [], "model": {"vocab": {"a": 0, "b": 2}}}), "leaves out token ids"),
        (json.dumps({"added_tokens": [], "model": {"vocab": {"東": 0}}}), "is damaged"),
    ],
)
def test_invalid_tokenizer_file_is_refused_in_one_sentence(tmp_path: Path, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=sentence):
        read_vocabulary(tmp_path)


def test_vocabulary_of_other_model_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(CheckpointError, match="does not hold gpt-oss's vocabulary"):
        _ = Vocabulary(vocabulary.words[:1000], vocabulary.special).harmony
