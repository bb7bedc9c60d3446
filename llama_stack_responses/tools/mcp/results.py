"""Conversion of an MCP tool's result for the item and for the model."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.json_blocks import blocks
from ...core.types import Json
from ..tool_function import Outcome, Output, ToolError


def outcome_of(result: Json) -> Outcome:
    """Convert the result of a call.

    Args:
        result: MCP's `CallToolResult`.

    Raises:
        ToolError: the result is an error.
    """
    parts = list(_parts(result))
    text = "\n".join(part.get("text") or "(an image)" for part in parts)
    if result.get("isError"):
        error = {"type": "mcp_tool_execution_error", "content": result.get("content") or []}
        raise ToolError(text or "The tool failed without an error message.", {"error": error})
    only_text = all(part["type"] == "input_text" for part in parts)
    output: Output = text if only_text else parts
    return Outcome(output, {"output": text})


def _parts(result: Json) -> Iterator[Json]:
    """Yield the result as content parts for the model."""
    content = result.get("content") or []
    yield from (_part(block) for block in content)
    # Servers should repeat structured content as text; this is for those that do not.
    structured = result.get("structuredContent")
    if structured is not None and not any(block["type"] == "text" for block in content):
        yield {"type": "input_text", "text": "".join(block.decode() for block in blocks(structured))}


def _part(block: Json) -> Json:
    match block["type"]:
        case "text":
            return {"type": "input_text", "text": block["text"]}
        case "image":
            return _image(block["mimeType"], block["data"])
        case "resource":
            return _resource(block["resource"])
        case "resource_link":
            return {"type": "input_text", "text": f"{block.get('title') or block['name']}: {block['uri']}"}
        case kind:
            return {"type": "input_text", "text": f"(content of the type '{kind}')"}


def _resource(resource: Json) -> Json:
    if "text" in resource:
        return {"type": "input_text", "text": resource["text"]}
    media_type = resource.get("mimeType") or "application/octet-stream"
    if media_type.startswith("image/"):
        return _image(media_type, resource["blob"])
    return {"type": "input_text", "text": f"({media_type} at {resource['uri']})"}


def _image(media_type: str, data: str) -> Json:
    if not media_type.startswith("image/"):
        return {"type": "input_text", "text": f"({media_type})"}
    return {"type": "input_image", "image_url": f"data:{media_type};base64,{data}", "detail": "auto"}
