"""The JSON of an answer that was asked for in words: models and their servers write other things around it.

Reasoning that a server leaves in the text may lack its opening mark, which the template of the model has written into
the prompt (Qwen3, DeepSeek). Sources: langchain-nvidia pull request 181 and zettelrobbe issue 74 (reasoning in tags),
vLLM issue 12468, gpt-oss without a parser of its channels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

NO_JSON: Final = "it is not JSON"
"""How the sentence about a text begins that is no JSON."""
_BLANK: Final = " \t\r\n\ufeff"
"""What is left out around an answer; the last one is a byte order mark."""
_ENDS_OF_REASONING: Final = (
    *("</think>", "</thinking>", "</thought>", "</reasoning>", "[/THINK]"),
    *("\u25c1/think\u25b7", "<channel|>", "<|message|>", "assistantfinal"),  # Kimi, Gemma, gpt-oss and without marks
)
_LAST_MARKS: Final = re.compile(r"(?:\s|<\|[\w ]{1,40}\|>|</s>|<end_of_turn>|<eos>|</?answer>)+\Z")
_LAST_CHARACTERS: Final = 200
_FENCE: Final = "```"
_LANGUAGE: Final = re.compile(r"[\w+-]{0,20}[ \t]*(?:\r?\n)?")
_BEGINNINGS: Final = tuple('{["-0123456789tfn')
"""First characters of JSON."""


def json_texts(text: str) -> list[str]:
    """Return the parts of an answer that may be its JSON, each once, those with the most around it first.

    The first one that is JSON is the answer. There is always one; none was parsed.
    """
    whole = text.strip(_BLANK)
    found = dict.fromkeys(each for each in _parts(whole) if each.startswith(_BEGINNINGS))
    return [*found] or [whole]


def _parts(whole: str) -> Iterator[str]:
    yield whole
    ends = [end + len(mark) for mark in _ENDS_OF_REASONING if (end := whole.rfind(mark)) >= 0]
    answer = whole[max(ends, default=0) :]
    last = _LAST_MARKS.search(answer, max(0, len(answer) - _LAST_CHARACTERS))
    answer = (answer[: last.start()] if last else answer).strip(_BLANK)
    yield answer
    for text in (answer, whole):  # An end of reasoning may be a part of the JSON.
        yield from _fenced(text)
        for opening, closing in ("{}", "[]"):
            yield text[text.find(opening) : text.rfind(closing) + 1]


def _fenced(text: str) -> Iterator[str]:
    """Yield what is between the first and the last fence, and between the last two."""
    last = text.rfind(_FENCE)
    if last < 0:
        return
    # An answer that ends without its closing fence
    end = last if text.find(_FENCE) != last else len(text)
    for begin in (text.find(_FENCE), text.rfind(_FENCE, 0, end)):
        inner = text[begin + len(_FENCE) : end]
        language = _LANGUAGE.match(inner)
        yield inner[language.end() if language else 0 :].strip(_BLANK)
