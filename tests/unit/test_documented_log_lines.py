"""The guide for operators has every warning and error that this software logs, with its level."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.log_lines import documented
from tests.support.sources import trees
from tests.support.stack import REPOSITORY

SOURCES: Final = ("llama_stack_responses", "providers/openai_chat")
LEVELS: Final = {"info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}


@cache
def in_source() -> Mapping[str, set[str]]:
    """Return the levels of each line of the source, by its constant text."""
    lines = defaultdict[str, set[str]](set)
    for root in SOURCES:
        for path, tree in trees(REPOSITORY / root).items():
            for text, level in logged(path, tree):
                lines[text].add(level)
    return lines


def logged(path: Path, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the constant text and the level of each line that a file logs."""
    constants = {
        each.target.id: each.value
        for each in tree.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="__init__"), args=[_, ast.Constant(str(line)), ast.Name("logger"), *_]
            ):
                yield from ((line, level) for level in ("WARNING", "ERROR"))  # of a `Periodic`, which logs its failures
            case ast.Call(func=ast.Attribute(value=ast.Name("logger"), attr=method), args=[given, *_]) if (
                method in LEVELS
            ):
                text = constants.get(given.id, given) if isinstance(given, ast.Name) else given
                assert isinstance(text, ast.Constant), f"{path}:{node.lineno}: the text of a log line is no literal"
                if line := constant_text(str(text.value)):
                    yield line, LEVELS[method]
                else:
                    assert path.name == "response_log.py", f"{path}:{node.lineno}: a log line begins with a value"


def constant_text(text: str) -> str:
    """Return the text of a line up to its first value."""
    return re.sub(r"[\s:('\"]+$", "", text.partition("%")[0])


def test_guide_has_every_warning_and_error_with_its_level() -> None:
    act_on = {text: levels for text, levels in in_source().items() if levels - {"INFO"}}
    assert {text: levels for text, levels in documented().items() if levels - {"INFO"}} == act_on


def test_documented_information_is_logged_at_its_level() -> None:
    source = in_source()
    lines = [text for text, levels in documented().items() if levels == {"INFO"}]
    assert lines
    assert [text for text in lines if source.get(text) != {"INFO"}] == []
