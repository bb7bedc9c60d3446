"""Code with its words marked by what they are, within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from markdown_it.common.utils import escapeHtml
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Generic, Keyword, Literal, Name, Operator, Token

_CHARACTERS: Final = 30_000
"""Maximum number of characters of code that is highlighted."""

_CLASSES: Final[Mapping[Any, str]] = {
    Comment: "comment",
    Keyword: "keyword",
    Operator.Word: "keyword",
    Literal.String: "string",
    Literal.Number: "number",
    Name.Attribute: "builtin",
    Name.Builtin: "builtin",
    Name.Class: "name",
    Name.Constant: "builtin",
    Name.Decorator: "name",
    Name.Exception: "name",
    Name.Function: "name",
    Name.Tag: "keyword",
    Generic.Deleted: "deleted",
    Generic.Inserted: "inserted",
    Generic.Heading: "name",
    Generic.Subheading: "name",
}
CLASSES: Final = tuple(f"hl-{name}" for name in sorted(set(_CLASSES.values())))
"""The classes of the elements `span`."""

_LANGUAGES: Final = frozenset(
    (
        *("bash", "c", "c#", "c++", "console", "cpp", "cs", "csharp", "css", "dart", "diff", "docker", "dockerfile"),
        *("elixir", "go", "golang", "graphql", "haskell", "hcl", "html", "http", "ini", "java", "javascript", "js"),
        *("json", "jsonc", "jsx", "julia", "kotlin", "latex", "lua", "make", "makefile", "matlab", "nginx", "nix"),
        *("objective-c", "objc", "ocaml", "perl", "php", "powershell", "properties", "proto", "protobuf", "py"),
        *("py3", "python", "python3", "r", "rb", "ruby", "rs", "rust", "sass", "scala", "scss", "sh", "shell"),
        *("sql", "swift", "terraform", "tex", "toml", "ts", "tsx", "typescript", "udiff", "vue", "xml", "yaml"),
        *("yml", "zig", "zsh"),
    )
)
"""What models usually write. Other code has no colours."""


def highlighted(code: str, language: str) -> str | None:
    """Return code as HTML with spans; None if it is too long, or if its language is not known."""
    if len(code) > _CHARACTERS or language.lower() not in _LANGUAGES:
        return None
    lexer = get_lexer_by_name(language.lower(), stripnl=False, ensurenl=False)
    named = ((_class_of(token), text) for token, text in lexer.get_tokens(code))
    pieces = ((name, escapeHtml("".join(text for _, text in group))) for name, group in groupby(named, itemgetter(0)))
    return "".join(f'<span class="hl-{name}">{text}</span>' if name else text for name, text in pieces)


def _class_of(token: Any) -> str | None:
    while token is not Token and token is not None:
        if found := _CLASSES.get(token):
            return found
        token = token.parent
    return None
