"""Only the charsets of the WHATWG Encoding Standard are honoured."""

import codecs
import encodings.aliases

import pytest

from llama_stack_responses.core.charsets import codec_of, codec_of_mark


@pytest.mark.parametrize(
    ("label", "codec"),
    [
        ("utf-8", "utf-8"),
        ("UTF8", "utf-8"),
        ("\t latin1\n", "cp1252"),
        ("ISO-8859-1", "cp1252"),
        ("us-ascii", "cp1252"),
        ("Shift_JIS", "cp932"),
        ("gb2312", "gb18030"),
        ("iso-8859-8-i", "iso8859-8"),
    ],
)
def test_label_of_encoding_standard_has_codec(label: str, codec: str) -> None:
    assert codec_of(label) == codec


def test_all_codecs_are_text_encodings_of_python() -> None:
    names = {name for name in map(codec_of, _known()) if name}
    assert len(names) == 36
    for name in names:
        assert codecs.lookup(name)._is_text_encoding
        assert b"a".decode(name, "replace") or name.startswith("utf-16")


@pytest.mark.parametrize(
    "label", ["punycode", "idna", "utf-7", "unicode_escape", "raw_unicode_escape", "zlib", "rot13", "hz", "x" * 10_000]
)
def test_other_python_codec_is_not_charset(label: str) -> None:
    assert codec_of(label) is None


def _known() -> set[str]:
    """Return Python's codec names, as they are written in headers."""
    names = {*encodings.aliases.aliases, *encodings.aliases.aliases.values()}
    web = {"windows-874", "macintosh", "iso-8859-16", "windows-1258", "x-mac-cyrillic", "koi8-u", "utf-16be"}
    return {each.replace("_", "-") for each in names} | names | web


@pytest.mark.parametrize(
    ("content", "codec"),
    [(b"\xef\xbb\xbfa", "utf-8-sig"), ("a".encode("utf-16"), "utf-16"), (b"\xfe\xff\0a", "utf-16"), (b"a", None)],
)
def test_byte_order_mark_selects_codec(content: bytes, codec: str | None) -> None:
    assert codec_of_mark(content) == codec
