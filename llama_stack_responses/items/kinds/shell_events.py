"""The events of a container's shell: each command and its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...core.types import Json

COMMAND: Final = ("shell_call_command.added", "shell_call_command.delta", "shell_call_command.done")
"""The events of each command of a `shell_call`."""

PRINTED: Final = ("shell_call_output_content.delta", "shell_call_output_content.done")
"""The events of each command's output in a `shell_call_output`."""


def shell_event(name: str, sequence_number: int, item: Json, output_index: int, command_index: int) -> Json:
    """Return one of these events.

    Args:
        item: the `shell_call` or the finished `shell_call_output`.
    """
    head = {"type": f"response.{name}", "sequence_number": sequence_number}
    at = {"output_index": output_index, "command_index": command_index}
    if name in COMMAND:
        command: str = item["action"]["commands"][command_index]
        match name.rpartition(".")[2]:
            case "added":
                return {**head, **at, "command": ""}
            case "delta":
                return {**head, **at, "delta": command}
            case _:
                return {**head, **at, "command": command}
    printed: Json = item["output"][command_index]
    if name == PRINTED[0]:
        return {**head, "item_id": item["id"], **at, "delta": {each: printed[each] for each in ("stdout", "stderr")}}
    return {**head, "item_id": item["id"], **at, "output": [printed]}


def command_events(sequence_number: int, item: Json, output_index: int) -> list[Json]:
    """Return the events of all commands of a `shell_call`, numbered from `sequence_number`."""
    return _events(COMMAND, len(item["action"]["commands"]), sequence_number, item, output_index)


def printed_events(sequence_number: int, item: Json, output_index: int) -> list[Json]:
    """Return the events of all outputs of a `shell_call_output`, numbered from `sequence_number`."""
    return _events(PRINTED, len(item["output"]), sequence_number, item, output_index)


def without_commands(action: Json) -> Json:
    """Return the action of a `shell_call` before its commands are sent."""
    return {**action, "commands": []}


def nothing_printed(_: list[Json]) -> list[Json]:
    """Return the output of a `shell_call_output` before it is sent."""
    return []


def _events(names: Sequence[str], count: int, sequence_number: int, item: Json, output_index: int) -> list[Json]:
    order = [(name, command_index) for command_index in range(count) for name in names]
    return [
        shell_event(name, sequence_number + offset, item, output_index, command_index)
        for offset, (name, command_index) in enumerate(order)
    ]
