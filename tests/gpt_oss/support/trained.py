"""A tiny checkpoint that speaks Harmony, expanded from its compact form to the published layout.

The compact form has only the embedding rows of known words; the others are zero.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file

from .checkpoints import Size, write_hugging_face
from .vocabulary import write_tokenizer

COMPACT = Path(__file__).parents[1] / "trained.safetensors"
ROWS = "rows"  # the token ids of the rows that are kept
TABLES = ("model.embed_tokens.weight", "lm_head.weight")
SIZE = Size(hidden=64, intermediate=64, vocabulary=201088, window=128)


def write_trained(folder: Path) -> Path:
    """Write the checkpoint with its tokenizer.json, ready to be served."""
    tensors = load_file(COMPACT)
    rows = tensors.pop(ROWS).long()
    for name in TABLES:
        whole = torch.zeros(SIZE.vocabulary, SIZE.hidden, dtype=torch.bfloat16)
        whole[rows] = tensors[name]
        tensors[name] = whole
    write_hugging_face(folder, tensors, SIZE)
    write_tokenizer(folder)
    return folder
