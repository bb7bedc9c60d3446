"""Write a tiny chat model with random weights: half a megabyte, in the format of Hugging Face.

    .venv-model-servers/bin/python tests/support/tiny_model.py FOLDER

It needs torch, tokenizers and transformers, and imports no neighbours. What the model writes has no meaning, but a real
server reads its prompts, enforces its grammars and counts its tokens.
"""

import sys
from pathlib import Path
from typing import Any

SPECIAL = ("<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Takes messages of all roles, tool calls and tool messages."""


def tokenizer() -> Any:
    """Return a tokenizer of bytes with the chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bare.train_from_iterator(
        [], trainers.BpeTrainer(vocab_size=300, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
    )
    found = PreTrainedTokenizerFast(tokenizer_object=bare, bos_token="<s>", eos_token="<|im_end|>", pad_token="<pad>")
    found.chat_template = TEMPLATE
    return found


def main() -> None:
    """Write the model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = Path(sys.argv[1])
    words = tokenizer()
    words.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=4,
        pad_token_id=2,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    main()
