"""Convert items to chat messages, as the model's profile requires."""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Final

import orjson

from ..core.types import Json
from ..items.kind import Names
from ..items.reasoning_segments import ReasoningSegment, plain_reasoning
from .adaptation.message_edits import WithReasoning
from .function_calls import HOSTED, as_functions
from .profile import Profile
from .replayed_reasoning import Thoughts, add_reasoning, add_signature, signs_call, text_of

_WITHIN: Final = (" ", "\n", "\t", ".", ",", ";", ":", "!", "?", ")")
"""Beginnings of a text that goes on within a sentence."""
_ATTACHED: Final = "(see the attachment in the next message)"
_UNSEEN: Final = "(an attachment that this model cannot read)"
_DETAILS: Final = {"original": "high"}
"""What the chat API has for details of images that only the Responses API has."""


def chat_messages(
    items: Sequence[Json],
    profile: Profile,
    *,
    instructions: str | None = None,
    all_reasoning: bool = False,
    signed_reasoning: bool = True,
    names: Names | None = None,
    read_reasoning: Callable[[Json], Sequence[ReasoningSegment]] = plain_reasoning,
) -> list[Json]:
    """Return the chat messages for `items`.

    Args:
        items: normalized items, the history first; every tool call has its output among them. They hold only media that
            the model accepts, images by URL and files as data.
        profile: what the model's template allows.
        instructions: the first system message.
        all_reasoning: replay the reasoning of all turns, not only of the current one.
        signed_reasoning: replay what providers signed or encrypted of all turns, where the profile replays reasoning as
            it was received.
        names: the model's names for the client's functions, where they differ from the client's.
        read_reasoning: returns the content of a reasoning item for the model.
    """
    items = list(as_functions(items, names or {}))
    first = 0 if all_reasoning else turn_start(items)
    signed = profile.reasoning_replay == "as_received" and signed_reasoning
    thoughts = Thoughts(items, read_reasoning, first, signed=signed)
    builder = _Builder(profile, _outputs(items), thoughts)
    if instructions:
        builder.system("system", instructions)
    for number, item in enumerate(items):
        builder.add(number, item)
    return _merge_system(builder.finish(), profile)


@dataclass(slots=True)
class _Assistant:
    """The assistant message that is being built, and its calls, which wait for their outputs.

    Attributes:
        reasoning: the segments of each reasoning item.
        left_out: the segments of each reasoning item of an earlier turn.
        calls: the calls, each with the signatures that belong to it.
    """

    text: list[str] = field(default_factory=list)
    reasoning: list[list[ReasoningSegment]] = field(default_factory=list)
    left_out: list[Sequence[ReasoningSegment]] = field(default_factory=list)
    calls: list[tuple[Json, list[ReasoningSegment]]] = field(default_factory=list)


class _Builder:
    def __init__(self, profile: Profile, outputs: dict[str, deque[Json]], thoughts: Thoughts) -> None:
        self._profile = profile
        self._outputs = outputs
        self._thoughts = thoughts
        self._messages: list[Json] = []
        self._attached: list[Json] = []
        self._assistant: _Assistant | None = None

    def add(self, number: int, item: Json) -> None:
        match item["type"]:
            case "message" if item["role"] == "assistant":
                self._open().text.append(_plain_text(item["content"]))
            case "message":
                # A system message that moves to the front must not separate two assistant messages.
                if item["role"] == "user" or self._profile.system_messages != "merge_all":
                    self._flush()
                self._message(item)
            case "reasoning":
                self._reason(number)
            case "function_call":
                self._call(number, item)
            case "function_call_output" if self._assistant and self._assistant.calls:
                # The output is placed right after its call, as chat templates require.
                self._flush()

    def _reason(self, number: int) -> None:
        assistant = self._open()
        assistant.reasoning.append(self._thoughts.of_item(number))
        if left_out := self._thoughts.left_out(number):
            assistant.left_out.append(left_out)

    def _call(self, number: int, item: Json) -> None:
        segments, assistant = self._thoughts.of_call(number), self._open()
        assistant.calls.append((item, [segment for segment in segments if signs_call(segment)]))
        assistant.reasoning.append([segment for segment in segments if not signs_call(segment)])

    def finish(self) -> list[Json]:
        self._flush()
        self._attach()
        return self._messages

    def system(self, role: str, content: str) -> None:
        role = self._profile.developer_role if role == "developer" else role
        self._messages.append({"role": role, "content": content})

    def _message(self, item: Json) -> None:
        if item["role"] == "user":
            self._say({"role": "user", "content": self._user_content(item["content"])})
        else:
            parts = item["content"]
            self._attached += [self._part(part) for part in parts if part["type"] != "input_text"]
            self.system(item["role"], _joined([part.get("text", _ATTACHED) for part in parts]))

    def _say(self, message: Json) -> None:
        """Append a message other than a system message, after the media of the system messages before it."""
        self._attach()
        self._messages.append(message)

    def _attach(self) -> None:
        media, self._attached = self._attached, []
        if media:
            self._messages.append({"role": "user", "content": media})

    def _open(self) -> _Assistant:
        self._assistant = self._assistant or _Assistant()
        return self._assistant

    def _flush(self) -> None:
        assistant, self._assistant = self._assistant, None
        if assistant is None or not (any(assistant.text) or assistant.calls):
            return
        message: Json = {"role": "assistant", "content": "\n\n".join(filter(None, assistant.text)) or None}
        chat_calls = [self._chat_call(call, signatures) for call, signatures in assistant.calls]
        if chat_calls:
            message["tool_calls"] = chat_calls
        add_reasoning(message, assistant.reasoning, self._profile)
        if assistant.left_out and self._profile.reasoning_replay != "none":
            message = WithReasoning(message, partial(text_of, assistant.left_out))
        self._say(message)
        self._tool_messages(
            (call["call_id"], made["id"]) for (call, _), made in zip(assistant.calls, chat_calls, strict=True)
        )

    def _chat_call(self, call: Json, signatures: Sequence[ReasoningSegment]) -> Json:
        chat_call: Json = {"id": call["call_id"]}
        if "input" in call and self._profile.custom_tools == "custom":
            chat_call |= {"type": "custom", "custom": {"name": call["name"], "input": call["input"]}}
        else:
            function = {"name": call["name"], "arguments": _arguments(call["arguments"])}
            chat_call |= {"type": "function", "function": function}
        if self._profile.reasoning_replay != "none":
            for each in signatures:
                add_signature(chat_call, each)
        return chat_call

    def _tool_messages(self, calls: Iterable[tuple[str, str]]) -> None:
        """Append the outputs of calls, given the id of each, and that which the model server knows it by."""
        media: list[Json] = []
        for call_id, name in calls:
            waiting = self._outputs[call_id]
            if waiting:
                answer = waiting.popleft()
                output = self._seen(answer["output"]) if answer.get(HOSTED) else answer["output"]
                content = self._tool_content(output, media)
                self._messages.append({"role": "tool", "tool_call_id": name, "content": content})
        if media:
            self._messages.append({"role": "user", "content": media})

    def _seen(self, output: str | list[Json]) -> str | list[Json]:
        """Replace parts of a hosted tool's output that this model does not accept: the client did not choose them."""
        if isinstance(output, str):
            return output
        accepted = {"input_text": True, "input_image": self._profile.images, "input_file": self._profile.files}
        return [part if accepted[part["type"]] else {"type": "input_text", "text": _UNSEEN} for part in output]

    def _tool_content(self, output: Any, media: list[Json]) -> Any:
        if isinstance(output, str):
            return output
        parts = [self._part(part) for part in output]
        attachments = [part for part in parts if part["type"] != "text"]
        if attachments and self._profile.tool_media == "tool_message":
            return parts
        media.extend(attachments)
        texts = [part["text"] for part in parts if part["type"] == "text"]
        return "\n".join(texts + [_ATTACHED] * bool(attachments))

    def _user_content(self, parts: Sequence[Json]) -> Any:
        # Text is joined: not every model server, and no template of a model that reads only text, accepts parts.
        if all(part.keys() == {"type", "text"} for part in parts):
            return "\n\n".join(part["text"] for part in parts)
        return [self._part(part) for part in parts]

    def _part(self, part: Json) -> Json:
        converted = self._content(part)
        if breakpoint_ := part.get("prompt_cache_breakpoint"):
            converted["prompt_cache_breakpoint"] = breakpoint_
        return converted

    @staticmethod
    def _content(part: Json) -> Json:
        match part["type"]:
            case "input_image":
                detail = part.get("detail", "auto")
                chosen = {} if detail == "auto" else {"detail": _DETAILS.get(detail, detail)}
                return {"type": "image_url", "image_url": {"url": part["image_url"], **chosen}}
            case "input_file":
                file = {name: part[name] for name in ("filename", "file_data") if name in part}
                return {"type": "file", "file": file}
            case "input_audio":
                return {"type": "input_audio", "input_audio": part["input_audio"]}
            case _:
                return {"type": "text", "text": part["text"]}


def _outputs(items: Iterable[Json]) -> dict[str, deque[Json]]:
    """Return the outputs that wait for their call, by call id; ids may repeat over the turns of a history."""
    waiting: dict[str, deque[Json]] = defaultdict(deque)
    unanswered: Counter[str] = Counter()
    for item in items:
        if item["type"] == "function_call":
            unanswered[item["call_id"]] += 1
        elif item["type"] == "function_call_output" and unanswered[item["call_id"]]:
            # A call's second output must not be assigned to a later call with the same id.
            unanswered[item["call_id"]] -= 1
            waiting[item["call_id"]].append(item)
    return waiting


def turn_start(items: Sequence[Json]) -> int:
    """Return the index of the last user message, with which the current turn began."""
    numbers = range(len(items) - 1, -1, -1)
    return next((n for n in numbers if items[n]["type"] == "message" and items[n]["role"] == "user"), 0)


def _plain_text(parts: Iterable[Json]) -> str:
    return "".join(part.get("text") or part.get("refusal") or "" for part in parts)


def _arguments(text: str) -> str:
    """Return the arguments as a JSON object, even if invalid: servers parse them and would refuse the whole chat."""
    try:
        # As strict as those servers: no NaN, no unpaired surrogates.
        if isinstance(orjson.loads(text), dict):
            return text
    except ValueError:
        pass
    return json.dumps({"invalid_arguments": text}) if text.strip() else "{}"


def _merge_system(messages: list[Json], profile: Profile) -> list[Json]:
    if profile.system_messages == "keep":
        return messages
    system = ("system", "developer")
    end = next((n for n, message in enumerate(messages) if message["role"] not in system), len(messages))
    if profile.system_messages == "merge_all":
        first = [message for message in messages if message["role"] in system]
        rest = [message for message in messages if message["role"] not in system]
    else:
        first, rest = messages[:end], messages[end:]
    if len(first) < 2:
        return first + rest
    return [{"role": first[0]["role"], "content": "\n\n".join(message["content"] for message in first)}, *rest]


def _joined(texts: Sequence[str]) -> str:
    """Return texts with a blank line between two of them, except within a sentence: the variables of a prompt."""
    pieces = list(texts[:1])
    for before, text in pairwise(texts):
        within = before[-1:].isspace() or text.startswith(_WITHIN)
        pieces += [text] if within else ["\n\n", text]
    return "".join(pieces)
