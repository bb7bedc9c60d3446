"""Regular expressions that are compiled when they are first used."""

import re

import pytest

from llama_stack_responses.core.late_patterns import LatePattern


def test_results_are_those_of_the_compiled_expression() -> None:
    late, compiled = LatePattern("(b)c?", re.IGNORECASE), re.compile("(b)c?", re.IGNORECASE)
    text = "abcdBe"
    assert late.search(text, 2)[0] == compiled.search(text, 2)[0] == "B"  # type: ignore[index]
    assert late.search(text, 2, 4) is compiled.search(text, 2, 4) is None
    assert late.match(text, 1)[0] == compiled.match(text, 1)[0] == "bc"  # type: ignore[index]
    assert late.fullmatch("BC")
    assert not late.fullmatch(text)
    assert late.findall(text) == compiled.findall(text) == ["b", "B"]
    assert [found.span() for found in late.finditer(text)] == [found.span() for found in compiled.finditer(text)]
    assert late.sub("-", text) == compiled.sub("-", text) == "a-d-e"
    assert late.sub(lambda found: found[0].upper(), text) == "aBCdBe"
    assert late.split(text, 1) == compiled.split(text, 1)


def test_expression_is_compiled_once_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_now = re.compile

    def record(pattern: str, flags: int = 0) -> re.Pattern[str]:
        compiled.append(pattern)
        return compile_now(pattern, flags)

    monkeypatch.setattr(re, "compile", record)
    late = LatePattern("seldom")
    assert not compiled
    assert late.search("it is seldom")
    assert not late.search("it is often")
    assert compiled == ["seldom"]
