"""gpt-oss's vocabulary without a checkpoint: the words from a package that ships them, the special tokens by name."""

import base64
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

WORDS = "core/_static/tiktoken_cache/fb374d419588a4632f3f557e76b4b70aebbca790"  # o200k_base
SPECIAL = {
    "<|startoftext|>": 199998,
    "<|endoftext|>": 199999,
    "<|return|>": 200002,
    "<|constrain|>": 200003,
    "<|channel|>": 200005,
    "<|start|>": 200006,
    "<|end|>": 200007,
    "<|message|>": 200008,
    "<|call|>": 200012,
    "<|endofprompt|>": 200018,
}


@cache
def tokenizer_json() -> bytes:
    """Return a tokenizer.json like the published one, without the merges, which no test reads."""
    vocabulary = {"".join(_LETTERS[byte] for byte in word): rank for rank, word in enumerate(_words())}
    names = dict(SPECIAL)
    for number in range(199998, 201088):
        if number not in SPECIAL.values():
            names[f"<|reserved_{number}|>"] = number
    added: list[dict[str, Any]] = [
        {"id": number, "content": name, "special": True} for name, number in sorted(names.items(), key=lambda n: n[1])
    ]
    whole = {"version": "1.0", "added_tokens": added, "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    return json.dumps(whole, ensure_ascii=False).encode()


def write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(tokenizer_json())


def _words() -> list[bytes]:
    found = importlib.util.find_spec("llama_index")
    assert found is not None
    assert found.submodule_search_locations
    lines = (Path(found.submodule_search_locations[0]) / WORDS).read_bytes().splitlines()
    return [base64.b64decode(line.split()[0]) for line in lines]


def _letters() -> list[str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


_LETTERS = _letters()
