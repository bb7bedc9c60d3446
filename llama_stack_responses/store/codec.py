"""Values as bytes.

The first byte says how the rest is written: the format's number in its low
bits, flags in its high ones. Then comes the head, if any: raw bytes, such as
hashes, that compression could only make longer. Then the value as JSON,
compressed where that makes it smaller.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import orjson

from ..core.errors import ApiError

FORMAT: Final = 1
"""The number of the format that is written. Formats that were once written stay readable."""

_COMPRESSED: Final = 0x80
_HEAD: Final = 0x40
_LENIENT: Final = 0x20
_FLAGS: Final = 0xF0

_SMALL: Final = 100
_LEVEL: Final = 3
# With zlib's own choice, 8, most of the time for a small value goes into making its tables.
_MEMORY: Final = 6

# What responses and their items have in common: compression starts with this text as its past. It is part of format 1
# and must not change; another text is another format.
_PAST: Final = b"""{"type":"custom_tool_call_output","call_id":"call_","output":"{"type":"custom_tool_call","input":"\
{"type":"web_search_call","action":{"type":"search","query":"","sources":[{"type":"url","url":"https://www.\
{"type":"url_citation","start_index":,"end_index":,"url":"https://","title":"{"type":"mcp_list_tools","server_label":"\
{"type":"mcp_call","arguments":"{\\"query\\":\\"","approval_request_id":null,"server_label":"","error":null,"name":"\
{"type":"file_search_call","queries":["results":[{"file_id":"file-","filename":"","score":0.,"attributes":{}\
{"type":"code_interpreter_call","code":"","container_id":"cntr_","outputs":[{"type":"logs","logs":"\
{"type":"object","properties":{"description":"","type":"string"},"required":[""],"additionalProperties":false},\
"strict":true,"type":"function","name":"","parameters":{"$schema":"http://json-schema.org/draft-07/schema#",\
{"role":"system","role":"developer","content":[{"type":"input_image","image_url":"data:image/png;base64,","detail":\
"auto"},{"type":"input_file","file_data":"","filename":" the and that this with for you are is of to in it on can\
{"type":"json_schema","name":"","schema":{"error":{"code":"server_error","message":""},"incomplete_details":{"reason":\
"max_output_tokens"},"status":"incomplete","status":"in_progress","status":"failed","status":"cancelled","status":\
"queued","background":true,"reasoning":{"effort":"low","effort":"high","summary":"auto"},"tool_choice":"required",\
{"response":{"id":"resp_","object":"response","created_at":17,"status":"completed","background":false,"billing":null,\
"completed_at":17,"conversation":null,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":\
null,"max_tool_calls":null,"model":"openai/gpt-","moderation":null,"output":[],"parallel_tool_calls":true,\
"previous_response_id":"resp_","prompt":null,"prompt_cache_key":null,"prompt_cache_retention":null,\
"presence_penalty":0.0,"frequency_penalty":0.0,"reasoning":{"effort":"medium","summary":null},"safety_identifier":\
null,"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"},"verbosity":"medium"},\
"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"truncation":"disabled","usage":{"input_tokens":1,\
"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":1,"output_tokens_details":\
{"reasoning_tokens":0},"total_tokens":1},"user":null,"metadata":{}},"owner":["",{}],"history":"","outputs":1,\
"fields":{"tools":"},"order":"6[{"id":"call_","type":"function_call_output","status":"completed","call_id":"call_",\
"output":"[{"id":"fc_","type":"function_call","status":"completed","arguments":"{\\"","call_id":"call_","name":"\
[{"id":"rs_","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":""}],"encrypted_content":null,\
"status":"completed"},[{"id":"msg_","type":"message","role":"user","status":"completed","content":[{"type":\
"input_text","text":"[{"id":"msg_","type":"message","role":"assistant","status":"completed","phase":"final_answer",\
"content":[{"type":"output_text","text":"","annotations":[],"logprobs":[]}]}]"""


class UnreadableError(ApiError):
    """A stored record is damaged, or of a format that is not known here."""

    def __init__(self, message: str) -> None:
        super().__init__(500, message)


def dumps(value: Any, *, ordered: bool = False) -> bytes:
    """`value` as JSON without spaces, its keys sorted if `ordered`."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if ordered else None)
    except TypeError:
        # Halves of surrogate pairs and integers over 64 bits, which models do emit.
        return json.dumps(value, separators=(",", ":"), sort_keys=ordered).encode()


def encode(value: Any, head: bytes = b"", *, pack: bool = True) -> bytes:
    """The bytes of a JSON `value`, behind at most 65,535 bytes of `head`.

    Without `pack` it is not compressed: for large values that are gone again in a moment.
    """
    flags = FORMAT
    try:
        body = orjson.dumps(value)
    except TypeError:
        body, flags = dumps(value), flags | _LENIENT
    if pack and len(body) >= _SMALL:
        packer = zlib.compressobj(_LEVEL, wbits=-15, memLevel=_MEMORY, zdict=_PAST)
        packed = packer.compress(body) + packer.flush()
        if len(packed) < len(body):
            body, flags = packed, flags | _COMPRESSED
    if head:
        return b"".join((bytes((flags | _HEAD,)), len(head).to_bytes(2), head, body))
    return bytes((flags,)) + body


def head(data: bytes) -> bytes:
    """The head that `data` was encoded with."""
    _check(data)
    return data[3 : _body(data)] if data[0] & _HEAD else b""


def decode(data: bytes) -> Any:
    """The value that `data` was encoded from.

    Raises:
        UnreadableError: the bytes are damaged, or of a format that is not known here.
    """
    _check(data)
    body = data[_body(data) :]
    try:
        if data[0] & _COMPRESSED:
            body = zlib.decompressobj(-15, _PAST).decompress(body)
        return json.loads(body) if data[0] & _LENIENT else orjson.loads(body)
    except (zlib.error, ValueError) as error:
        raise UnreadableError("A stored record is damaged.") from error


def known(kind: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the stored fields that the dataclass `kind` has: a newer version of the software may have added some."""
    return {field.name: stored[field.name] for field in fields(kind) if field.name in stored}


def _body(data: bytes) -> int:
    return 3 + int.from_bytes(data[1:3]) if data[0] & _HEAD else 1


def _check(data: bytes) -> None:
    found = data[0] & ~_FLAGS if data else 0
    if found != FORMAT:
        raise UnreadableError(
            f"A stored record has the format {found}; this version of the software reads format {FORMAT}."
        )
