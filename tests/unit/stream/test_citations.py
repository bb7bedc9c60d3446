"""Markers in streamed text become citations, wherever the chunks are cut."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.stream.citations import Citation, CitationExtractor
from llama_stack_responses.stream.deltas import Annotation, Delta, Finish, Reasoning, Text

type Json = dict[str, object]

A = {"type": "url_citation", "url": "https://a.example/", "title": "A"}
F = {"type": "file_citation", "file_id": "file-1", "filename": "f.txt"}
LINK = "([a.example](https://a.example/))"


def cite(key: str, lines: str) -> Citation | None:
    return {"1": Citation(LINK, A), "F1": Citation("", F)}.get(key)


def read(*texts: str) -> list[Delta]:
    extractor = CitationExtractor(cite)
    deltas: list[Delta] = [*map(Text, texts), Finish("stop")]
    return [each for delta in deltas for each in extractor.feed(delta)]


def shown(deltas: Iterable[Delta]) -> tuple[str, list[tuple[int, int, str]]]:
    """Return the text, and the range and type of each citation."""
    text, citations = "", []
    for delta in deltas:
        if isinstance(delta, Text):
            text += delta.text
        elif isinstance(delta, Annotation):
            assert delta.length is not None
            citations.append((len(text) - delta.length, len(text), str(delta.value["type"])))
    return text, citations


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("Otters swim 【1】.", (f"Otters swim {LINK}.", [(12, 12 + len(LINK), "url_citation")])),
        ("Otters swim【1†L3-L5】.", (f"Otters swim {LINK}.", [(12, 12 + len(LINK), "url_citation")])),
        ("【1】", (LINK, [(0, len(LINK), "url_citation")])),
        ("Otters【F1】 swim", ("Otters swim", [(6, 6, "file_citation")])),
        ("Nobody【7†source】 said【1†】", (f"Nobody said {LINK}", [(12, 12 + len(LINK), "url_citation")])),
        ("【7】 and 【注意】 and 【", ("【7】 and 【注意】 and 【", [])),
        ("【【1】】", (f"【 {LINK}】", [(2, 2 + len(LINK), "url_citation")])),
        ("【1", ("【1", [])),
        ("【1†" + "x" * 101 + "】", ("【1†" + "x" * 101 + "】", [])),
        ("【1†a\nb】", ("【1†a\nb】", [])),
    ],
)
def test_markers_become_citations(text: str, result: tuple[str, list[tuple[int, int, str]]]) -> None:
    assert shown(read(text)) == result
    assert shown(read(*text)) == result


def test_text_without_marker_is_passed_unchanged() -> None:
    extractor, delta = CitationExtractor(cite), Text("Otters")
    [passed] = extractor.feed(delta)
    assert passed is delta


def test_impossible_marker_is_emitted_at_once() -> None:
    extractor = CitationExtractor(cite)
    assert shown(extractor.feed(Text("a【1"))) == ("a", [])
    assert shown(extractor.feed(Text("x"))) == ("【1x", [])


def test_other_delta_ends_marker() -> None:
    extractor = CitationExtractor(cite)
    assert list(extractor.feed(Text("【1"))) == []
    assert list(extractor.feed(Reasoning("hm"))) == [Text("【1"), Reasoning("hm")]
    assert shown(extractor.feed(Text("】"))) == ("】", [])


PIECES = st.sampled_from(
    ["【1】", "【1†L3-L5】", "【F1】", "【7】", "【7†x】", "【", "】", "†", "1", "F", "ä", " ", "word", "\n"]
)


@st.composite
def cut(draw: st.DrawFn) -> tuple[str, Sequence[str]]:
    text = "".join(draw(st.lists(PIECES, max_size=8)))
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return text, [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@given(cut())
def test_arbitrary_cuts_do_not_change_citations(given_text: tuple[str, Sequence[str]]) -> None:
    text, pieces = given_text
    assert shown(read(*pieces)) == shown(read(text))


def token(text: str | bytes) -> Json:
    encoded = text.encode() if isinstance(text, str) else text
    return {"token": encoded.decode(errors="replace"), "bytes": list(encoded), "logprob": -0.5, "top_logprobs": []}


def logprobs(deltas: Iterable[Delta]) -> list[list[str]]:
    return [[entry["token"] for entry in delta.logprobs or ()] for delta in deltas if isinstance(delta, Text)]


def test_logprobs_stay_with_their_text() -> None:
    extractor = CitationExtractor(cite)
    whole = Text("é: b【1】 c", [token(each) for each in ("é", ":", " b【", "1", "】", " c")])
    assert logprobs(extractor.feed(whole)) == [["é", ":", " b"], [], [" c"]]


def test_logprobs_of_marker_over_several_chunks_are_dropped() -> None:
    extractor = CitationExtractor(cite)
    deltas = [Text(each, [token(each)]) for each in ("a ", "【", "1", "】.", " b")]
    assert logprobs(each for delta in deltas for each in extractor.feed(delta)) == [["a "], [], ["."], [" b"]]


def test_logprobs_of_incomplete_marker_are_kept() -> None:
    extractor = CitationExtractor(cite)
    deltas: list[Delta] = [Text("【", [token(b"\xe3\x80"), token(b"\x90")]), Text("1", [token("1")]), Finish("stop")]
    [held, _] = [each for delta in deltas for each in extractor.feed(delta)]
    assert isinstance(held, Text)
    assert held.logprobs is not None
    assert (held.text, len(held.logprobs)) == ("【1", 3)


def test_citations_of_a_round_are_bounded_in_characters() -> None:
    title = "t" * 10_000
    extractor = CitationExtractor(lambda *_: Citation("link", {"type": "url_citation", "title": title}))
    deltas = [delta for _ in range(10) for delta in extractor.feed(Text("【1】" * 100))]
    assert sum(isinstance(delta, Annotation) for delta in deltas) == 2**20 // 10_272 + 1
    assert isinstance(deltas[-1], Text)
    assert deltas[-1].text.endswith("【1】")
