"""Formulas in LaTeX as MathML, within bounds."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from latex2mathml.converter import Converter

ELEMENTS: Final = frozenset(
    (
        *("math", "menclose", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom"),
        *("mprescripts", "mroot", "mrow", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable"),
        *("mtd", "mtext", "mtr", "munder", "munderover", "none"),
    )
)
"""What a formula consists of. None of these elements links, loads or runs anything."""

_LENGTH: Final = r"-?[0-9]{0,2}(?:\.[0-9]{1,4})?(?:em|ex|pt|px|mu|%)?"
_WORDS: Final = r"[a-z][a-z -]{0,60}"
ATTRIBUTES: Final[Mapping[str, re.Pattern[str]]] = {
    **dict.fromkeys(("accent", "display", "fence", "form", "largeop", "movablelimits"), re.compile("[a-z]{1,10}")),
    **dict.fromkeys(("separator", "stretchy", "symmetric", "displaystyle"), re.compile("true|false")),
    **dict.fromkeys(("columnalign", "columnlines", "mathvariant", "notation", "rowlines"), re.compile(_WORDS)),
    **dict.fromkeys(("columnspacing", "rowspacing", "linethickness", "lspace", "rspace"), re.compile(_LENGTH)),
    **dict.fromkeys(("depth", "height", "maxsize", "minsize", "voffset", "width"), re.compile(_LENGTH)),
    "scriptlevel": re.compile("[0-3]"),
}
"""The attributes that elements keep, with what they may be: no address, no class, no colour, and no large size."""

_CHARACTERS: Final = 2_000
_MAX_ELEMENTS: Final = 2_000
_MAX_DEPTH: Final = 40
_UNCONVERTED: Final = re.compile(
    r"\\(?:(?:re)?new(?:command|environment)|def|gdef|let|Declare[A-Za-z]+|verb|href|url|includegraphics|html[A-Za-z]*)"
)
"""Commands whose formulas stay as they are: definitions, which can grow without end, and what is no mathematics."""

_SAME: Final[Mapping[str, str]] = {
    **dict.fromkeys(("align", "aligned", "alignat", "alignedat", "eqnarray", "flalign", "split"), "{align*}"),
    **dict.fromkeys(("displaymath", "equation", "math"), "{align*}"),
    **dict.fromkeys(("gather", "gathered", "multline"), "{matrix}"),
}
"""Environments, without a star, that the library does not know or numbers, and those that look the same."""

_ENVIRONMENT: Final = re.compile(
    r"(?<=\\begin)\{(align(?:ed)?at)\*?\}(?:\{[0-9]{1,2}\})?|(?:(?<=\\begin)|(?<=\\end))\{(\w+)\*?\}"
)
_UNSEEN: Final = re.compile(r"\\(?:label\{[^{}]*\}|(?:nonumber|notag)(?![A-Za-z]))")
"""What names and numbers lines, which have no numbers here."""

_BRACKETS: Final = re.compile(r"\\(?:begin|end|left|right)(?![A-Za-z])|\\.|[{}]", re.DOTALL)
_COMMAND: Final = re.compile(r"\\[A-Za-z]")


def mathml_of(latex: str, *, block: bool) -> str | None:
    """Return a formula as MathML; None if the library cannot convert all of it, or if it is too large.

    Args:
        latex: the formula, without what it stands between.
        block: whether it is a paragraph of its own.
    """
    if len(latex) > _CHARACTERS or _UNCONVERTED.search(latex) or not _is_whole(latex):
        return None
    try:
        known = _ENVIRONMENT.sub(_known, _UNSEEN.sub("", latex))
        # Not `convert`, which writes the texts of a formula without escaping them.
        tree = Converter(display="block" if block else "inline").convert_to_element(known)
        copy = _checked(tree)
        return None if copy is None else tostring(copy, encoding="unicode")
    except Exception:  # noqa: BLE001 - the library has many ways to say that it cannot read a formula
        return None


def _known(environment: re.Match[str]) -> str:
    return _SAME.get(environment[1] or environment[2], environment[0])


def _is_whole(latex: str) -> bool:
    """Return whether all braces and environments are closed: the library leaves out what follows an open one."""
    depth, pairs = 0, 0
    for found in _BRACKETS.finditer(latex):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        pairs += {r"\begin": 1, r"\left": 1, r"\end": -1, r"\right": -1}.get(found[0], 0)
        if depth < 0 or pairs < 0:
            return False
    return depth == pairs == 0


def _checked(tree: Element) -> Element | None:
    """Return a copy of a tree, with only what is allowed; None if it is too large, or has what is not converted."""
    root = Element("math")
    waiting, count = [(tree, root, 1)], 0
    while waiting:
        found, copy, depth = waiting.pop()
        count += 1
        text = html.unescape(found.text or "")
        if found.tag not in ELEMENTS or depth > _MAX_DEPTH or count > _MAX_ELEMENTS or _COMMAND.search(text):
            return None
        if "linebreak" in found.attrib or text == "&":  # lines and columns of what the library does not know
            return None
        copy.text = text
        for name, value in found.attrib.items():
            if (allowed := ATTRIBUTES.get(name)) and allowed.fullmatch(value):
                copy.set(name, value)
        waiting += [(each, SubElement(copy, str(each.tag)), depth + 1) for each in found]
    return root
