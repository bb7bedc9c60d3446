"""Encode values as bytes.

The first byte says how the rest is encoded: the format's number in the low bits, flags in the high bits. An optional
head follows: raw bytes, such as hashes, which do not compress. The rest is the value as JSON, compressed if that makes
it smaller.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple

import orjson

from ..core import json_decoding
from ..core.errors import ApiError
from ..core.json_blocks import dumps, strict_blocks
from ..core.json_values import decoded_bytes, is_large

FORMAT: Final = 1
"""The format that is written. Earlier formats stay readable."""

_COMPRESSED: Final = 0x80
_HEAD: Final = 0x40
_LENIENT: Final = 0x20
_FLAGS: Final = 0xF0
_PLAIN: Final = bytes((FORMAT,))

MAX_VALUE_BYTES: Final = 2**30
"""Maximum size of a decompressed record in bytes, far above what the largest request produces."""

_SLICE_BYTES: Final = 2**20
"""Bytes of JSON that are decoded in one call, for which other threads wait."""

_SMALL_BYTES: Final = 100
_COPIED_BYTES: Final = 4_096
_DAMAGED: Final = "A stored record is damaged."
_LEVEL: Final = 3
# With zlib's default, 8, most of the time for a small value is spent on setting up tables.
_MEMORY: Final = 6

# Preset dictionary for compression: text that responses and items have in common. It is part of format 1 and must not
# change; another dictionary is another format.
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
    """A stored record is damaged, or its format is not supported."""

    def __init__(self, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(500, message, headers=headers)


class TooLarge(Exception):  # noqa: N818 - an answer, as a conflict is
    """A decompressed record is larger than the caller allows."""


def encode(value: Any, head: bytes = b"", *, pack: bool = True, small: bool = False) -> bytes:
    """Return the encoded JSON `value`, with at most 65,535 bytes of `head` in front.

    Args:
        pack: compress the value. False suits large values that are soon deleted.
        small: as for `text_of`.
    """
    return pack_text(text_of(value, small=small), head, pack=pack)


def encode_small(value: Any) -> bytes:
    """Return the encoded JSON of a small value that is soon deleted: without compression, in the fewest steps."""
    try:
        return _PLAIN + orjson.dumps(value)
    except TypeError:
        return pack_text(text_of_small(value), pack=False)


class JsonText(NamedTuple):
    """A value as JSON. `lenient`: only Python's own decoder reads it."""

    json: bytes | bytearray
    lenient: bool


def text_of(value: Any, *, small: bool = False) -> JsonText:
    """Return a value as JSON. A large one is encoded in blocks: other threads wait for each call.

    Args:
        small: whether the value is known not to be large, and so need not be measured.
    """
    if small or not is_large(value, _SLICE_BYTES):
        return text_of_small(value)
    try:
        body = bytearray()  # grows in place
        for block in strict_blocks(value):
            body += block
        return JsonText(body, lenient=False)
    except TypeError:
        return JsonText(dumps(value), lenient=True)


def text_of_small(value: Any) -> JsonText:
    """Return a value that is known not to be large as JSON."""
    try:
        return JsonText(orjson.dumps(value), lenient=False)
    except TypeError:
        return JsonText(dumps(value), lenient=True)


def _packer(window: int, memory: int) -> Any:
    """Return a compressor with the dictionary; `window` and `memory` are sizes as zlib counts them."""
    return zlib.compressobj(_LEVEL, wbits=-window, memLevel=memory, zdict=_PAST)


_SMALL_PACKER: Final = _packer(13, 5)
"""It is copied for each small value: reading the dictionary takes longer. Its window holds both."""


def pack_text(text: JsonText, head: bytes = b"", *, pack: bool = True) -> bytes:
    """Return the result of `encode` for a value that is already JSON."""
    body, flags = text.json, FORMAT | (_LENIENT if text.lenient else 0)
    if pack and len(body) >= _SMALL_BYTES:
        packer = _SMALL_PACKER.copy() if len(body) <= _COPIED_BYTES else _packer(15, _MEMORY)
        packed = packer.compress(body) + packer.flush()
        if len(packed) < len(body):
            body, flags = packed, flags | _COMPRESSED
    if head:
        return b"".join((bytes((flags | _HEAD,)), len(head).to_bytes(2), head, body))
    return bytes((flags,)) + body


def head(data: bytes) -> bytes:
    """Return the head that `data` was encoded with."""
    _check(data)
    return data[3 : _body(data)] if data[0] & _HEAD else b""


def with_head(data: bytes, head: bytes) -> bytes:
    """Return an encoded value with another head, at least one byte; it is not decompressed."""
    _check(data)
    return b"".join((bytes((data[0] | _HEAD,)), len(head).to_bytes(2), head, data[_body(data) :]))


def decode(data: bytes, max_bytes: int = MAX_VALUE_BYTES) -> Any:
    """Return the value that `data` was encoded from.

    Raises:
        UnreadableError: the bytes are damaged, have an unsupported format, or decompress to more than `max_bytes`.
    """
    return parse(data, whole_text(data, max_bytes))


def whole_text(data: bytes, max_bytes: int = MAX_VALUE_BYTES) -> bytes:
    """Return the JSON that `data` holds, decompressed.

    Raises:
        UnreadableError: as from `decode`.
    """
    try:
        return text(data, max_bytes)
    except TooLarge as error:
        raise UnreadableError(f"A stored record is damaged: it holds more than {max_bytes} bytes.") from error


def text(data: bytes, max_bytes: int) -> bytes:
    """Return what `whole_text` returns, within a bound.

    Raises:
        TooLarge: it has more than `max_bytes`. Decompression stops there.
        UnreadableError: as from `decode`.
    """
    _check(data)
    body = data[_body(data) :]
    if data[0] & _COMPRESSED:
        unpacker = zlib.decompressobj(-15, _PAST)
        try:
            # A bound of 0 would mean no bound.
            body = unpacker.decompress(body, max_bytes + 1)
        except zlib.error as error:
            raise UnreadableError(_DAMAGED) from error
    if len(body) > max_bytes:
        raise TooLarge
    return body


def parse(data: bytes, body: bytes) -> Any:
    """Return the value that `data` was encoded from, given the JSON that it holds. Large JSON is decoded in pieces.

    Raises:
        UnreadableError: `body` is not valid JSON.
    """
    try:
        if data[0] & _LENIENT:
            return json.loads(body)
        return json_decoding.loads(body, _SLICE_BYTES)
    except ValueError as error:
        raise UnreadableError(_DAMAGED) from error


def unpacked(data: bytes) -> bytes:
    """Return an encoded value without compression; what is not encoded here as it is."""
    if not _is_encoded(data) or not data[0] & _COMPRESSED:
        return data
    return bytes((data[0] & ~_COMPRESSED,)) + data[1 : _body(data)] + text(data, MAX_VALUE_BYTES)


def repacked(data: bytes) -> bytes:
    """Return an encoded value with compression; what is not encoded here as it is."""
    if not _is_encoded(data) or data[0] & _COMPRESSED:
        return data
    return pack_text(JsonText(data[_body(data) :], bool(data[0] & _LENIENT)), head(data))


def known(kind: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored fields that the dataclass `kind` has. A newer version of the software may have added others."""
    return {field.name: stored[field.name] for field in fields(kind) if field.name in stored}


def size(data: bytes, text: bytes) -> int:
    """Return the cost of reading `data`, given its JSON: roughly the size of the value in memory in bytes."""
    return _body(data) + decoded_bytes(text)


def size_behind(head_bytes: int, text: JsonText) -> int:
    """Return the `size` of what `pack_text` makes of a text with a head of this many bytes."""
    return 3 + head_bytes + decoded_bytes(text.json)


def _body(data: bytes) -> int:
    return 3 + int.from_bytes(data[1:3]) if data[0] & _HEAD else 1


def _is_encoded(data: bytes) -> bool:
    return bool(data) and data[0] & ~_FLAGS == FORMAT


def _check(data: bytes) -> None:
    version = data[0] & ~_FLAGS if data else 0
    if version != FORMAT:
        raise UnreadableError(
            f"A stored record has the format {version}; this version of the software reads format {FORMAT}."
        )
