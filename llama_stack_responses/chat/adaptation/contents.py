"""The contents of messages and the reasoning, as a model server takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from ...core.late_patterns import LatePattern
from ...core.types import Json
from ..reasoning_entries import BLOCKS, DETAILS, SIGNATURES, TEXT_FIELDS, signatures_in
from .adaptation import Adaptation, Form, answers
from .calls import names_calls
from .message_edits import (
    MEDIA,
    WithReasoning,
    are_same,
    each_message,
    joined,
    parts_of,
    text_of,
    walking,
    with_messages,
)
from .refusal import Refusal

_BLANK: Final = "(empty)"

_REASONING: Final = (*TEXT_FIELDS, DETAILS, BLOCKS)
_SIGNATURES: Final = ("extra_content", "provider_specific_fields", *SIGNATURES)
"""Members of a message with its reasoning, and of a message, a call or its function with a signature."""

_TAKES_NO_IMAGES: Final = LatePattern(
    r"\b(?:images?|image_url|multi-?modal|vision)\b(?: inputs?| content| parts?)?(?: is| are)? ?"
    r"not (?:currently )?(?:support|allow|accept|enabl|available)"
    r"|(?:not|n't|cannot|unable to|no) (?:support|accept|see|view|allow|take|have)\w*[^.]{0,24}"
    r"\b(?:images?|image_url|vision|multi-?modal)\b(?! (?:formats?|types?|urls?|sizes?|media|generation))"
    r"|\bmodel (?:cannot|can't|can not|is unable to|is not able to) (?:process|handle|read) (?:any )?images\b"
    r"|support image input|not a multi-?modal|\bmmproj\b|at most 0 image|\bno vision\b|required for image"
    r"|(?:unknown|unsupported|invalid|unexpected|unrecogni[sz]ed)[^.]{0,40}\bmodalit(?:y|ies)\b"
    r"|(?:unknown|unsupported|invalid|unexpected|unrecogni[sz]ed)[^.]{0,40}"
    r"\b(?:type|variant|kind|part|chunk|content)\b[^.]{0,20}\bimage_url\b"
    # pydantic, where a part may only be text
    r"|\bimage_url\b[^.]{0,40}\bdoes not match any of the expected tags\b|\btype: input should be 'text'"
    r"|\bimage_url\b[^.]{0,30}(?:not |un|only )supported"
    r"|\btext[- ]only\b|only (?:supports?|accepts?|allows?)(?: \w+)? text\b"
    r"|only \W?text\b[^.]{0,20}(?:support|allow|accept)|\bvision\b[^.]{0,20} is not loaded\b"
    # GLM
    r"|\bcontent(?:\[\d{1,4}\])?\.type\s?(?:\u7c7b\u578b\u9519\u8bef|\u53c2\u6570\u975e\u6cd5)"
    r"|\u4e0d\u652f\u6301.{0,8}(?:\u56fe|\u89c6\u89c9|\u591a\u6a21\u6001)",
    re.IGNORECASE,
)
"""Words that say that a model or a server takes no images at all."""
_SUCH_IMAGES: Final = LatePattern(
    r"\bimages? (?:with (?!this|the|your)|larger|smaller|bigger|over|above|of|at|from|that|which|exceed)"
    r"|\b(?:dimensions?|pixels?|resolution|transparen\w*|animated|truncated|corrupt\w*|broken|decod\w*)\b"
    r"|\b(?:webp|gif|svg|heic|avif|tiff|bmp|cmyk|colou?r space)\b|\d ?[KMG]i?B\b"
    r"|\b(?:polic(?:y|ies)|safety|violat\w+|moderat\w+|quota|tier|checksum|header|signature|fetch\w*|download\w*)\b"
    r"|\b(?:this|the) image (?:is|was|has|could)\b|\bimage (?:is )?not available\b|\burl returned\b|\bin message \d",
    re.IGNORECASE,
)
"""Words about the size, the form, the content or the state of one image, or about a rule: another one may be taken."""
_SOME_IMAGES: Final = LatePattern(
    r"\b(?:at most|up to|max(?:imum)?(?: of)?|only|more than|limit of|limited to)\W{1,3}([1-9]\d{0,2}) images?\b"
    r"|\bimages?\b[^.]{0,40}\b(?:at most|maximum(?: of| is)?|limit(?: of| is)?)\W{1,3}([1-9]\d{0,2})\b"
    # vLLM, and texts that compare
    r"|[{,] ?\W?image\W{1,4}([1-9]\d{0,2})\W{0,2}[,}]|\bimages\b[^.]{0,20}: \d{1,4} > ([1-9]\d{0,2})\b"
    r"|\bmax(?:imum)? images: ([1-9]\d{0,2})\b|\b(?:only|at most|up to) (one|a single) image\b",
    re.IGNORECASE,
)
"""Words about too many images, with the number that there may be."""
LEFT_OUT: Final = "(an earlier image, which is left out)"
_NO_AUDIO: Final = LatePattern(
    r"\b(?:audio|input_audio)\b(?: inputs?| content| parts?)?(?: is| are)? ?not (?:currently )?(?:support|allow|accept)"
    r"|(?:not|n't|no) (?:support|accept|allow|take)\w*[^.]{0,24}\baudio\b"
    r"(?! (?:formats?|types?|output|longer|larger|over|with|of))"
    r"|support (?:input )?audio|\bmmproj\b|at most 0 audio"
    r"|(?:unknown|unsupported|invalid|unexpected|unrecogni[sz]ed)[^.]{0,40}\b(?:type|variant|kind|part|chunk|content)\b[^.]{0,20}\binput_audio\b",
    re.IGNORECASE,
)
_TEXT_CONTENT: Final = LatePattern(
    r"(?:expect\w*|must be|should be|needs to be|require\w*|not)\W+(?:an? )?(?:valid )?(?:(?:of )?type )?"
    r"\W?(?:string|str)\b"
    r"|(?:got|is|received|found|wrong type:|not support\w*)(?: an?)? \W?(?:array|list|sequence)|invalid type: sequence"
    r"|expects input with json type \W?string\b"
    # Templates, TGI
    r"|'list' object has no attribute '(?:l?strip|rstrip|r?split|startswith|endswith|replace|find|lower|upper)'"
    r"|unhashable type: 'list'|untagged enum messagecontent"
    r"|unknown (?:part|content) type|\bArrayValue\b|(?:str|string) type expected|cannot unmarshal array"
    r"|\(not \"list\"\) to str|only (?:string|plain text) content",
    re.IGNORECASE,
)
_NULL_CONTENT: Final = LatePattern(
    r"\bcontent\b.{0,200}(?:\bnull\b|\bNone(?:Type)?\b|missing|required|string)"
    r"|(?:\bnull\b|\bNone(?:Type)?\b|missing|required|string)\b.{0,200}\bcontent\b|\bNoneType\b"
    # serde without the name of the member, Ollama, Chinese servers
    r"|\bmessages\b.{0,80}\binvalid type: null|\bcontent\b[^.]{0,40}<nil>"
    r"|\bmust (?:contain|have)\W{1,3}content\b|\bNone'[^.]{0,20}has no attribute\b"
    # GLM
    r"|\bprompt parameter was not received\b|\u672a\u6b63\u5e38\u63a5\u6536\u5230prompt"
    r"|\u8f93\u5165\u4e0d\u80fd\u4e3a\u7a7a"
    # DeepSeek: without any content
    r"|\btoken length must be in \(0, ?\d{1,15}\], but got 0\b"
    r"|(?<!\w)content['\"`]?\s?(?:\u4e0d\u80fd|\u4e0d\u5f97|\u4e0d\u53ef)?(?:\u4e3a|\u662f)(?:\u7a7a|null)",
    re.DOTALL | re.IGNORECASE,
)
_LOST_CALLS: Final = LatePattern(
    r"\btool\b[^.]{0,40}\bmust (?:be a response to|follow)\b[^.]{0,60}\btool_?calls?\b"
    r"|\bno (?:previous|preceding)\b[^.]{0,40}\btool call|\btool id\b[^.]{0,80}\bnot found\b",
    re.IGNORECASE,
)
"""What servers say of outputs if they drop messages without content, with the calls in them."""
_NO_CONTENT: Final = LatePattern(
    r"\bcontent\b.{0,80}\b(?:missing|required)|\b(?:missing|required)\b.{0,80}\bcontent\b", re.DOTALL | re.IGNORECASE
)
_BLANK_CONTENT: Final = LatePattern(
    r"\b(?:empty|blank|non-?empty|non-?whitespace|min_length|at least (?:1|one) char\w*"
    r"|have either(?![^.]{0,80}\bnot both))\b"
    # GLM
    r"|\bprompt parameter was not received\b|\u672a\u6b63\u5e38\u63a5\u6536\u5230prompt"
    r"|\u8f93\u5165\u4e0d\u80fd\u4e3a\u7a7a",
    re.IGNORECASE,
)
_NOT_BESIDE_CALLS: Final = LatePattern(
    r"\bcontent\b[^.]{0,20}\btool_?calls\b[^.]{0,20}\bnot both\b|\bboth\W{1,3}content\W{1,3}and\W{1,3}tool_?calls\b"
    r"|\bcontent\b\W{1,3}must be\W{1,3}(?:null|empty|omitted)\b[^.]{0,20}\btool_?calls\b",
    re.IGNORECASE,
)
_NO_SPACE_LAST: Final = LatePattern(r"\b(?:end|trailing)\b[^.]{0,30}\bwhitespace\b", re.IGNORECASE)
_NO_THINKING_PARTS: Final = LatePattern(
    r"\b(?:tag|type|part|chunk|variant|kind)\b[^.]{0,30}\b(?:redacted_)?thinking\b(?! (?:mode|is|budget))",
    re.IGNORECASE,
)
SAID_BEFORE: Final = "(You said this before the call:)"
OUTPUT: Final = "(The output of the call:)"
"""What is before the text of the assistant and the output, where the text cannot be beside the call."""
_DEMANDED: Final = LatePattern(
    r"(?:reasoning_content|reasoning_details|\bthinking\b|\breasoning\b).{0,80}"
    r"(?:passed back|must be (?:passed|provided|included|returned|present|set)|is (?:missing|required)|not provided"
    r"|must not be (?:empty|null))"
    r"|(?:missing|must (?:contain|have|include))\b.{0,40}reasoning_content",
    re.IGNORECASE | re.DOTALL,
)


_NOT_BESIDE_REASONING: Final = LatePattern(
    r"\b(?:both|either)\b[^.]{0,40}\bcontent\b[^.]{0,20}\b(?:thinking|reasoning)"
    r"|\b(?:thinking|reasoning)\b[^.]{0,20}\bcontent\b[^.]{0,40}\bnot both",
    re.IGNORECASE,
)
_INVALID_SIGNATURE: Final = LatePattern(
    r"(?:invalid|corrupted|not valid|mismatch\w*|could not be (?:verified|decrypted))\b[^.]{0,30}\bsignature"
    r"|\bsignature\b[^.]{0,30}(?:invalid|corrupted|not valid|mismatch|could not be verified)"
    r"|encrypted[_ ]content\b[^.]{0,40}could not be"
    r"|thinking\W{1,3}blocks\b[^.]{0,60}\bcannot be modified\b",
    re.IGNORECASE,
)
_SIGNATURE: Final = LatePattern(r"\bthought.?signature", re.IGNORECASE)
_NO_SIGNATURE: Final = LatePattern(
    # Of an image, it is another one than that of a call.
    r"(?<!image part is )\b(?:missing|lacks?|without|no)\b(?: an?| the| its| any)?\W{1,4}thought.?signature"
    r"|\bthought.?signature\b\W{1,3}(?:is |was |are )?(?:missing|required|not (?:found|provided|present|set)|must be)",
    re.IGNORECASE,
)
STAND_IN: Final = "skip_thought_signature_validator"
"""What Gemini's documentation has for calls of another model: Gemini does not check it."""


# Images and audio


def _media_in(content: Any, kind: str) -> bool:
    return isinstance(content, list) and any(part.get("type") == kind for part in parts_of(content))


def _without(kind: str) -> Callable[[Json, Any], Json]:
    """Return `apply` of the kind that puts a note in place of each part of this type."""

    def change(message: Json) -> Json:
        content = message.get("content")
        if not _media_in(content, kind):
            return message
        note = {"type": "text", "text": MEDIA[kind]}
        parts = [note if part.get("type") == kind else part for part in parts_of(content)]
        plain = all(part.keys() == {"type", "text"} for part in parts)
        return message | {"content": text_of(parts) if plain else parts}

    return walking(change)


def _asks_few_images(refusal: Refusal, chat: Json) -> Iterator[int]:
    count = _SOME_IMAGES.search(refusal.words)
    number = next(filter(None, count.groups())) if count else "0"
    most = int(number) if number.isdigit() else 1
    if most and _few_images(chat, most) is not chat:
        yield most


def _few_images(chat: Json, most: Any) -> Json:
    """Return a chat request with the newest images, at most so many; by default, with the last one."""
    left, changed = most if isinstance(most, int) else 1, list[Json]()
    for message in reversed(chat["messages"]):
        content = message.get("content")
        if not _media_in(content, "image_url"):
            changed.append(message)
            continue
        parts = list[Json]()
        for part in reversed(parts_of(content)):
            is_image = part.get("type") == "image_url"
            parts.append({"type": "text", "text": LEFT_OUT} if is_image and left <= 0 else part)
            left -= is_image
        parts.reverse()
        changed.append(message if are_same(parts, content) else message | {"content": parts})
    changed.reverse()
    return with_messages(chat, changed)


_NO_IMAGE_PARTS: Final = _without("image_url")
_SAY_NO_IMAGES: Final = answers(_TAKES_NO_IMAGES, _NO_IMAGE_PARTS)


def _asks_no_images(refusal: Refusal, chat: Json) -> Iterable[None]:
    return () if _SUCH_IMAGES.search(refusal.words) else _SAY_NO_IMAGES(refusal, chat)


# Texts


def _asks_text_content(refusal: Refusal, chat: Json) -> Iterator[None]:
    of_content = "content" in refusal.words or any("content" in place for place in refusal.places)
    says = _TEXT_CONTENT.search(refusal.words) and (of_content or "messages" in refusal.words or not refusal.places)
    in_parts = any(isinstance(message.get("content"), list) for message in chat["messages"])
    others = (_asks_no_images, _asks_no_thinking_parts)
    if says and in_parts and not any(True for asks in others for _ in asks(refusal, chat)):
        yield None


def _as_text(message: Json) -> Json:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    text = text_of(content)
    return message | {"content": text or (None if message.get("tool_calls") else "")}


def _names_others(refusal: Refusal) -> bool:
    """Return whether a refusal is about calls, signatures or texts beside calls, not about missing contents."""
    return names_calls(refusal) or any(each.search(refusal.words) for each in (_SIGNATURE, _NOT_BESIDE_CALLS))


def _asks_empty_content(refusal: Refusal, chat: Json) -> Iterator[None]:
    of_content = any("content" in place.split(".") for place in refusal.places)
    lacking = any(message.get("content") is None for message in chat["messages"])
    says = of_content or _NULL_CONTENT.search(refusal.words) or _LOST_CALLS.search(refusal.words)
    if lacking and says and not _names_others(refusal):
        yield None


def _content_in_outputs(chat: Json, _: Any) -> Json:
    """Return a chat request in which the text of the assistant beside calls is before the output of the first one."""
    changed, said = list[Json](), ""
    messages = chat["messages"]
    for place, message in enumerate(messages):
        text, after = text_of(message.get("content")), messages[place + 1 : place + 2]
        if message.get("tool_calls") and text and after and after[0]["role"] == "tool":
            changed.append(message | {"content": None})
            said = text
        elif said:
            before = "\n\n".join((SAID_BEFORE, said, OUTPUT))
            changed.append(message | {"content": joined(before, message.get("content"))})
            said = ""
        else:
            changed.append(message)
    return with_messages(chat, changed)


def _trimmed(chat: Json, _: Any) -> Json:
    """Return a chat request whose last message, if it is the assistant's, ends without whitespace."""
    *rest, last = chat["messages"] or [{}]
    content = last.get("content")
    if last.get("role") != "assistant" or not isinstance(content, str) or content == content.rstrip():
        return chat
    return chat | {"messages": [*rest, last | {"content": content.rstrip()}]}


def _with_content(message: Json) -> Json:
    return message | {"content": ""} if message.get("content") is None else message


def _asks_other_content(refusal: Refusal, chat: Json) -> Iterator[None]:
    messages = [message for message in chat["messages"] if _has_only_calls(message)]
    says = (_NO_CONTENT,) if any(map(_is_blank, messages)) else (_NULL_CONTENT,)
    said = any(each.search(refusal.words) for each in (_BLANK_CONTENT, _LOST_CALLS, *says))
    if messages and said and not _names_others(refusal):
        yield None


def _has_only_calls(message: Json) -> bool:
    return bool(message.get("tool_calls")) and (message.get("content") is None or _is_blank(message))


def _without_content(message: Json) -> Json:
    if "content" not in message or not _has_only_calls(message):
        return message
    return {name: value for name, value in message.items() if name != "content"}


def _with_blank(message: Json) -> Json:
    return message | {"content": _BLANK} if _has_only_calls(message) else message


def _is_blank(message: Json) -> bool:
    content = message.get("content")
    return isinstance(content, str) and not content.strip()


def _without_blank(message: Json) -> Json:
    if not _is_blank(message):
        return message
    return message | {"content": None if message.get("tool_calls") else _BLANK}


# Reasoning


def refused_members(refusal: Refusal, chat: Json) -> Iterator[str]:
    """Yield the paths of the members with reasoning or signatures that a refusal names as unknown."""
    if not refusal.says_unsupported or _DEMANDED.search(refusal.words):
        return
    messages = [message for message in chat["messages"] if message["role"] == "assistant"]
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    for name in (*_REASONING, *_SIGNATURES):
        if any(place.endswith(f".{name}") for place in refusal.places) or _names(refusal, name):
            functions = [each for call in calls if isinstance(each := call.get("function"), dict)]
            holders = {"messages": messages, "messages.tool_calls": calls, "messages.tool_calls.function": functions}
            yield from (f"{path}.{name}" for path, some in holders.items() if any(name in each for each in some))


def _with_stand_in(message: Json) -> Json:
    """Return a message whose first call has a signature; one that the server does not check, if it has none."""
    calls = message.get("tool_calls")
    if not calls or signatures_in(calls[0]):
        return message
    first = calls[0] | {"extra_content": {"google": {"thought_signature": STAND_IN}}}
    return message | {"tool_calls": [first, *calls[1:]]}


def _as_reasoning(message: Json) -> Json:
    """Return a message with calls whose text is a part of its reasoning, if it has both."""
    content = text_of(message.get("content"))
    said = {name: text for name in TEXT_FIELDS if isinstance(text := message.get(name), str) and text}
    texts = {name: f"{text}\n\n{content}" for name, text in said.items()}
    if not (message.get("tool_calls") and content and texts):
        return message
    return {**message, **texts, "content": None}


def _names(refusal: Refusal, name: str) -> bool:
    """Return whether a refusal names a member of messages.

    A word of sentences has to be in marks, in a place, beside a noun such as "field", or said to be in messages.
    """
    if "_" in name or name != name.lower():
        return bool(re.search(rf"(?<!\w){name}(?!\w)", refusal.subject))
    noun = r"(?:keys?|fields?|propert(?:y|ies)|members?)"
    marked = rf"['\"`.\[](?<!\w){name}(?!\w)['\"`\]:]|\bmessages?(?:\[\d{{1,6}}\]|\.\d{{1,6}})?\.{name}\b"
    named = rf"\b{noun}(?:\(s\))?\W{{1,3}}{name}\b|\b{name} {noun}\b|\b{name}\b[^.]{{0,40}} in (?:\w+ )?messages?\b"
    return bool(re.search(f"{marked}|{named}", refusal.subject, re.IGNORECASE))


def _without_reasoning(message: Json) -> Json:
    if message["role"] != "assistant":
        return message
    gone = {name for name in (*_REASONING, *_SIGNATURES) if name in message}
    changed = {name: value for name, value in message.items() if name not in gone} if gone else message
    content = message.get("content")
    if isinstance(content, list):
        changed = changed | {"content": text_of(content) or None}
    calls = message.get("tool_calls") or ()
    unsigned = [_unsigned(call) for call in calls]
    return changed if are_same(unsigned, calls) else changed | {"tool_calls": unsigned}


def _unsigned(call: Json) -> Json:
    """Return a call without signatures, in it and in its function; the same one if there are none."""
    kept = {
        name: _unsigned(each) if name == "function" and isinstance(each, dict) else each
        for name, each in call.items()
        if name not in _SIGNATURES
    }
    return call if are_same([*kept.values()], [*call.values()]) else kept


def _without_thinking_parts(message: Json) -> Json:
    content = message.get("content")
    if message["role"] != "assistant" or not isinstance(content, list):
        return message
    parts = [part for part in parts_of(content) if part.get("type") not in _THINKING_PARTS]
    if are_same(parts, content):
        return message
    plain = all(part.get("type") == "text" for part in parts)
    return message | {"content": (text_of(parts) or None) if plain else parts}


def _asks_all_reasoning(refusal: Refusal, chat: Json) -> Iterator[None]:
    if not _DEMANDED.search(refusal.words) or "signature" in refusal.words:
        return
    if each_message(chat, _with_reasoning) is not chat:
        yield None


def _with_reasoning(message: Json) -> Json:
    if message["role"] != "assistant" or "reasoning_content" in message:
        return message
    known = message.reasoning() if isinstance(message, WithReasoning) else message.get("reasoning")
    return message | {"reasoning_content": known if isinstance(known, str) else ""}


_THINKING_PARTS: Final = ("thinking", "redacted_thinking")
_DROP_THINKING_PARTS: Final = walking(_without_thinking_parts)
_asks_no_thinking_parts: Final = answers(_NO_THINKING_PARTS, _DROP_THINKING_PARTS)
_NO_AUDIO_PARTS: Final = _without("input_audio")
_CONTENT_AS_REASONING: Final = walking(_as_reasoning)
_WITH_STAND_INS: Final = walking(_with_stand_in)
_WITHOUT_REASONING: Final = walking(_without_reasoning)
_WITHOUT_BLANKS: Final = walking(_without_blank)

CONTENTS: Final = (
    Form("all_reasoning", _asks_all_reasoning, walking(_with_reasoning), walks_messages=True),
    # Another model's signatures are in one conversation, not in all.
    Adaptation(
        "no_reasoning",
        answers(_INVALID_SIGNATURE, _WITHOUT_REASONING),
        _WITHOUT_REASONING,
        lasts=False,
        walks_messages=True,
    ),
    Form("stand_in_signatures", answers(_NO_SIGNATURE, _WITH_STAND_INS), _WITH_STAND_INS, walks_messages=True),
    Form(
        "content_in_reasoning",
        answers(_NOT_BESIDE_REASONING, _CONTENT_AS_REASONING),
        _CONTENT_AS_REASONING,
        walks_messages=True,
    ),
    Adaptation("no_thinking_parts", _asks_no_thinking_parts, _DROP_THINKING_PARTS, walks_messages=True),
    Form(
        "content_in_outputs", answers(_NOT_BESIDE_CALLS, _content_in_outputs), _content_in_outputs, walks_messages=True
    ),
    Form("trimmed_end", answers(_NO_SPACE_LAST, _trimmed), _trimmed),
    Adaptation("no_images", _asks_no_images, _NO_IMAGE_PARTS, walks_messages=True),
    # Its argument is the number of images that there may be, or None for one.
    Adaptation("few_images", _asks_few_images, _few_images, walks_messages=True),
    Adaptation("no_audio", answers(_NO_AUDIO, _NO_AUDIO_PARTS), _NO_AUDIO_PARTS, walks_messages=True),
    Adaptation("text_content", _asks_text_content, walking(_as_text), walks_messages=True),
    Form("empty_content", _asks_empty_content, walking(_with_content), walks_messages=True),
    # What clients send where neither `null` nor an empty text is taken beside calls: nothing, or some words.
    Form(
        "no_content",
        _asks_other_content,
        walking(_without_content),
        instead_of="empty_content",
        walks_messages=True,
    ),
    Form(
        "stand_in_content",
        _asks_other_content,
        walking(_with_blank),
        instead_of="no_content",
        walks_messages=True,
    ),
    Form("no_blank_content", answers(_BLANK_CONTENT, _WITHOUT_BLANKS), _WITHOUT_BLANKS, walks_messages=True),
)
