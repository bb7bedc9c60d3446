"""Reconstruction of a response's output from its stream of events, which rejects every inconsistent event.

It uses only the events: an item consists of its `output_item.added` plus its parts, deltas and annotations, and must
equal the whole item in `output_item.done`.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.conform import WireError

type Event = dict[str, Any]
type Json = dict[str, Any]

# A part's text: the event's stem -> (the item's list, the part's type, the key of the text in part and done event).
TEXTS: Final = {
    "response.output_text": ("content", "output_text", "text"),
    "response.refusal": ("content", "refusal", "refusal"),
    "response.reasoning_text": ("content", "reasoning_text", "text"),
    "response.reasoning_summary_text": ("summary", "summary_text", "text"),
}
PARTS: Final = {"response.content_part": "content", "response.reasoning_summary_part": "summary"}
PART_INDEX: Final = {"content": "content_index", "summary": "summary_index"}
PART_TYPES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "message": {"content": ("output_text", "refusal"), "summary": ()},
    "reasoning": {"content": ("reasoning_text",), "summary": ("summary_text",)},
}
# An item's string: the event's stem -> (the item's type, the key of the string in item and done event).
STRINGS: Final = {
    "response.function_call_arguments": ("function_call", "arguments"),
    "response.custom_tool_call_input": ("custom_tool_call", "input"),
    "response.mcp_call_arguments": ("mcp_call", "arguments"),
    "response.code_interpreter_call_code": ("code_interpreter_call", "code"),
}
ALWAYS_STREAMED: Final = {"function_call": "arguments", "custom_tool_call": "input"}  # their done event is required
# The progress of a tool: the last part of the event's type -> its rank; the highest rank is the end.
PROGRESS: Final = {
    "in_progress": 0,
    "searching": 1,
    "interpreting": 1,
    "generating": 1,
    "partial_image": 1,
    "compacting": 1,
    "completed": 2,
    "failed": 2,
}
IDENTITY: Final = ("id", "type", "role", "call_id", "name", "server_label", "namespace")
UNFINISHED: Final = ("in_progress", "searching", "interpreting", "generating", "calling", "queued")
THINKING: Final = ("message", "reasoning")  # the only item that may be open while another begins, and that other one
OPENS_IN_PROGRESS: Final = ("message", "reasoning", "function_call")


def require(holds: bool, what: str) -> None:
    """Raise WireError unless the condition holds."""
    if not holds:
        raise WireError(what)


def same(streamed: Any, stored: Any, what: str) -> None:
    """Raise WireError unless the streamed value equals the value in an event."""
    require(streamed == stored, f"{what}: streamed {streamed!r}, now {stored!r}")


def without_bytes(logprobs: list[Json] | None) -> list[Json]:
    """Return logprobs in the form common to events and parts: only those of a part must have `bytes`."""
    keys = ("token", "logprob", "top_logprobs")
    tokens = [{key: entry[key] for key in keys if entry.get(key)} for entry in logprobs or []]
    for token in tokens:
        if "top_logprobs" in token:
            token["top_logprobs"] = without_bytes(token["top_logprobs"])
    return tokens


@dataclass(slots=True)
class Part:
    """One part of a message or a reasoning item, as streamed so far."""

    added: Json
    key: str  # the key of its text
    fragments: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    annotations: list[Json] = field(default_factory=list)
    text_done: bool = False
    closed: Json | None = None  # the part in `.done`

    def snapshot(self) -> Json:
        """Return the part as described by the events so far."""
        if self.closed is not None:
            return deepcopy(self.closed)
        part = {**self.added, self.key: "".join(self.fragments)}
        if part["type"] == "output_text":
            part |= {"annotations": self.annotations, "logprobs": self.logprobs}
        return deepcopy(part)

    def text(self, verb: str, event: Event) -> None:
        """Apply `<text>.delta` and `<text>.done`."""
        require(not self.text_done, "its text is done already")
        if verb == "delta":
            self.fragments.append(event["delta"])
            self.logprobs += event.get("logprobs") or []
            return
        same("".join(self.fragments), event[self.key], f"the done {self.key}")
        same(without_bytes(self.logprobs), without_bytes(event.get("logprobs")), "the done logprobs")
        self.text_done = True

    def annotate(self, event: Event) -> None:
        """Apply `output_text.annotation.added`."""
        same(len(self.annotations), event["annotation_index"], "annotation_index")
        self.annotations.append(event["annotation"])

    def close(self, event: Event) -> None:
        """Apply `content_part.done` and `reasoning_summary_part.done`."""
        done = event["part"]
        require(self.text_done, "the part is done before its text")
        same(self.added["type"], done["type"], "the part's type")
        same("".join(self.fragments), done[self.key], f"the part's {self.key}")
        same(self.annotations, done.get("annotations") or [], "the part's annotations")
        same(without_bytes(self.logprobs), without_bytes(done.get("logprobs")), "the part's logprobs")
        self.closed = done


class Item:
    """One output item between its `added` and its `done`."""

    def __init__(self, added: Json) -> None:
        """Check the initial state of an item."""
        self.added = added
        self.done: Json | None = None
        self._lists: dict[str, list[Part]] = {"content": [], "summary": []}
        self._string: list[str] | None = None
        self._string_done = False
        self._progress: str | None = None
        self._commands: list[tuple[list[str], bool]] = []
        self._outputs: dict[int, dict[str, str]] = {}
        self._check_added()

    @property
    def type(self) -> str:
        """The item's type."""
        return str(self.added["type"])

    def snapshot(self) -> Json:
        """Return the item as described by the events so far."""
        if self.done is not None:
            return deepcopy(self.done)
        item = deepcopy(self.added)
        for key, parts in self._lists.items():
            if parts:
                item[key] = [part.snapshot() for part in parts]
        if self._string is not None:
            item[self._string_key()] = "".join(self._string)
        if self._commands:
            item["action"]["commands"] = ["".join(fragments) for fragments, _ in self._commands]
        return item

    def apply(self, stem: str, verb: str, event: Event) -> None:
        """Apply any event of the item except its `added` and `done`."""
        require(self.done is None, "the item is done already")
        same(self.added["id"], event.get("item_id", self.added["id"]), "item_id")
        if stem in PARTS:
            self._part_event(PARTS[stem], verb, event)
        elif stem in TEXTS:
            self._text_event(*TEXTS[stem], verb, event)
        elif stem == "response.output_text.annotation":
            self._open_part("content", "output_text", event).annotate(event)
        elif stem in STRINGS:
            self._string_event(*STRINGS[stem], verb, event)
        elif stem == "response.shell_call_command":
            self._command_event(verb, event)
        elif stem == "response.shell_call_output_content":
            self._output_event(verb, event)
        else:
            self._progress_event(stem.removeprefix("response."), verb)

    def finish(self, done: Json) -> None:
        """Apply `output_item.done`, which must contain everything as it was streamed."""
        require(self.done is None, "the item is done already")
        for key in IDENTITY:
            if self.added.get(key) is not None:
                same(self.added[key], done.get(key), f"the item's {key}")
        require(done.get("status") not in UNFINISHED, f"the item is done, but {done.get('status')!r}")
        self._finish_parts(done)
        self._finish_string(done)
        self._finish_shell(done)
        if self._progress in ("completed", "failed") and done.get("status") is not None:
            same(self._progress, done["status"], "the item's status")
        self.done = done

    # -- parts ---------------------------------------------------------------

    def _part_event(self, listed: str, verb: str, event: Event) -> None:
        parts, part = self._lists[listed], event["part"]
        if verb == "done":
            self._open_part(listed, part["type"], event).close(event)
            return
        same(len(parts), event[PART_INDEX[listed]], PART_INDEX[listed])
        require(
            part["type"] in PART_TYPES.get(self.type, {}).get(listed, ()),
            f"a {self.type} has no {part['type']} in its {listed}",
        )
        require(not parts or parts[-1].closed is not None, "the part before it is still open")
        key = "refusal" if part["type"] == "refusal" else "text"
        blank = not (part[key] or part.get("annotations") or part.get("logprobs"))
        require(blank, f"the part is added with content: {part!r}")
        parts.append(Part(part, key))

    def _text_event(self, listed: str, part_type: str, _key: str, verb: str, event: Event) -> None:
        self._open_part(listed, part_type, event).text(verb, event)

    def _open_part(self, listed: str, part_type: str, event: Event) -> Part:
        index, parts = event[PART_INDEX[listed]], self._lists[listed]
        require(0 <= index < len(parts), f"no {listed} part {index} was added")
        require(parts[index].closed is None, f"{listed} part {index} is done already")
        same(parts[index].added["type"], part_type, "the part's type")
        return parts[index]

    def _finish_parts(self, done: Json) -> None:
        if self.type not in PART_TYPES:
            return
        for listed, parts in self._lists.items():
            require(all(part.closed is not None for part in parts), f"the item is done, but not its {listed}")
            same([part.closed for part in parts], done.get(listed) or [], f"the item's {listed}")

    # -- strings -------------------------------------------------------------

    def _string_key(self) -> str:
        return next(key for item_type, key in STRINGS.values() if item_type == self.type)

    def _string_event(self, item_type: str, key: str, verb: str, event: Event) -> None:
        same(self.type, item_type, "the item's type")
        require(not self.added.get(key), f"the item was added with its {key}")
        require(not self._string_done, f"the {key} are done already")
        self._string = self._string or []
        if verb == "delta":
            self._string.append(event["delta"])
        else:
            same("".join(self._string), event[key], f"the done {key}")
            if item_type == "function_call":
                same(self.added["name"], event.get("name"), f"the name of the done {key}")
            self._string_done = True

    def _finish_string(self, done: Json) -> None:
        if self._string is None:
            require(self.type not in ALWAYS_STREAMED, f"the item is done without its {self.type} events")
            return
        require(self._string_done, f"the item is done, but not its {self._string_key()}")
        same("".join(self._string), done.get(self._string_key()), f"the item's {self._string_key()}")

    # -- shells --------------------------------------------------------------

    def _command_event(self, verb: str, event: Event) -> None:
        same(self.type, "shell_call", "the item's type")
        index = event["command_index"]
        if verb == "added":
            same(len(self._commands), index, "command_index")
            self._commands.append(([event["command"]], False))
            return
        require(0 <= index < len(self._commands), f"no command {index} was added")
        fragments, done = self._commands[index]
        require(not done, f"command {index} is done already")
        if verb == "delta":
            fragments.append(event["delta"])
        else:
            same("".join(fragments), event["command"], "the done command")
            self._commands[index] = (fragments, True)

    def _output_event(self, verb: str, event: Event) -> None:
        same(self.type, "shell_call_output", "the item's type")
        streamed = self._outputs.setdefault(event["command_index"], {"stdout": "", "stderr": ""})
        for name in streamed:
            if verb == "delta":
                streamed[name] += event["delta"].get(name) or ""
            else:
                same(streamed[name], "".join(chunk[name] for chunk in event["output"]), f"the done {name}")

    def _finish_shell(self, said: Json) -> None:
        if self._commands:
            require(all(done for _, done in self._commands), "the item is done, but not its commands")
            same(self.snapshot()["action"]["commands"], said["action"]["commands"], "the item's commands")
        for name in ("stdout", "stderr") if self._outputs else ():
            streamed = "".join(self._outputs[index][name] for index in sorted(self._outputs))
            same(streamed, "".join(chunk[name] for chunk in said["output"]), f"the item's {name}")

    # -- progress ------------------------------------------------------------

    def _progress_event(self, item_type: str, verb: str) -> None:
        require(verb in PROGRESS, "no rule for this event")
        same(self.type, item_type, "the item's type")
        before = -1 if self._progress is None else PROGRESS[self._progress]
        again = verb == self._progress == "partial_image"
        generating = (self._progress, verb) == ("generating", "partial_image")
        require(PROGRESS[verb] > before or again or generating, f"{verb!r} comes after {self._progress!r}")
        self._progress = verb

    def _check_added(self) -> None:
        require(bool(self.added.get("id")), "the item has no id")
        if self.type in OPENS_IN_PROGRESS:
            require(self.added.get("status") in ("in_progress", None), "the item is added, but not in progress")
        if self.type in PART_TYPES:
            require(not (self.added.get("content") or self.added.get("summary")), "the item is added with content")
        if (key := ALWAYS_STREAMED.get(self.type)) is not None:
            require(not self.added.get(key), f"the item is added with its {key}")


class Replay:
    """All items of one stream."""

    def __init__(self) -> None:
        """Start without items."""
        self.items: list[Item] = []

    @property
    def output(self) -> list[Json]:
        """The response's output as described by the events so far."""
        return [item.snapshot() for item in self.items]

    def apply(self, event: Event) -> None:
        """Apply any event of an item; WireError if it is inconsistent with the events before."""
        stem, verb = event["type"].rsplit(".", 1)
        if (stem, verb) == ("response.output_item", "added"):
            self._add(event)
            return
        require(event.get("output_index") in range(len(self.items)), f"no item {event.get('output_index')} was added")
        item = self.items[event["output_index"]]
        if stem == "response.output_item":
            item.finish(event["item"])
        else:
            item.apply(stem, verb, event)

    def _add(self, event: Event) -> None:
        same(len(self.items), event["output_index"], "output_index")
        item = Item(event["item"])
        # The item after the reasoning determines the phase of the message before it.
        still = [each.type for each in self.items if each.done is None and (each.type, item.type) != THINKING]
        require(not still, f"an item is added while {still} is open")
        require(item.added["id"] not in [each.added["id"] for each in self.items], "another item has this id")
        self.items.append(item)
