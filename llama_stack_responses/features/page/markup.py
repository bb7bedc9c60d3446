"""Renders Markdown as sanitised HTML. It runs in a worker process: foreign Markdown can take quadratic time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import nh3
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

from .cpu_budget import CpuBudget
from .formulas import ATTRIBUTES, ELEMENTS, mathml_of
from .highlighting import CLASSES, highlighted

Json = dict[str, Any]

_BLOCKS: Final = ("blockquote", "br", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "ul")
_INLINE: Final = ("a", "code", "del", "em", "s", "span", "strong")
_TABLES: Final = ("table", "tbody", "td", "th", "thead", "tr")
_ATTRIBUTES: Final = {
    "a": {"href"},
    "code": {"class"},
    "ol": {"start"},
    "span": {"class"},
    "td": {"align"},
    "th": {"align"},
    **{name: set(ATTRIBUTES) for name in ELEMENTS},
}
_ALLOWED: Final = {
    ("code", "class"): re.compile("language-[A-Za-z0-9_+#.-]{1,30}"),
    ("ol", "start"): re.compile("[0-9]{1,9}"),
    ("span", "class"): re.compile("|".join(CLASSES)),
    **{(cell, "align"): re.compile("left|center|right") for cell in ("td", "th")},
    **{(element, name): allowed for element in ELEMENTS for name, allowed in ATTRIBUTES.items()},
}
"""Values of attributes of elements; others are dropped. `href` is checked by its scheme."""

_ALIGNED: Final = re.compile(r' style="text-align:(left|center|right)"')


_MATH: Final = {r"\(": r"\)", r"\[": r"\]", "$$": "$$"}
"""The ends of formulas in LaTeX, by their beginnings."""

_MATH_ENVIRONMENT: Final = re.compile(
    r"\\begin(\{(?:align|alignat|displaymath|eqnarray|equation|flalign|gather|math|multline)\*?\})"
)
"""The beginning of an environment that is a formula by itself."""

_DOLLARS: Final = re.compile(r"\$(?![\s$])((?:[^$\\\n]|\\.){1,500}?)(?<!\s)\$(?![\w$])")
"""A formula between single dollars; two prices are none, and neither are two variables of a shell."""

_MATH_CHARACTERS: Final = 10_000
"""Maximum number of characters of a formula; a longer one is Markdown."""


_MAX_NESTING: Final = 30
_PLAIN_NESTING: Final = _MAX_NESTING - 4
"""The depth of blocks whose content is plain text: beyond its maximum, the parser drops all that follows."""

_BUDGET: Final = "budget"
"""The name under which the rules find the budget of formulas."""


class Markup:
    """Renders Markdown. Code and formulas for which too little time is left stay as they are.

    Args:
        seconds: CPU time of all code, and of all formulas.
        step_seconds: CPU time of one of them.
    """

    def __init__(self, seconds: float = 1.0, step_seconds: float = 0.25) -> None:
        self._code = CpuBudget(seconds, step_seconds)
        self._formulas = CpuBudget(seconds, step_seconds)
        options = {"html": False, "linkify": False, "maxNesting": _MAX_NESTING, "breaks": True}
        self._parser = MarkdownIt("commonmark", {**options, "highlight": self._highlighted})
        self._parser.enable(["table", "strikethrough"])
        self._parser.add_render_rule("image", _linked)
        self._parser.inline.ruler.before("escape", "math", _math_inline)
        self._parser.inline.ruler.before("escape", "dollars", _dollars_inline)
        self._parser.block.ruler.before("table", "too_deep", _too_deep)
        self._parser.block.ruler.before("code", "math", _math_block, {"alt": ["paragraph", "blockquote", "list"]})

    def html(self, markdown: str) -> str:
        """Return a text's HTML, which holds no elements and attributes but those named above, and no image."""
        rendered = self._parser.render(markdown, {_BUDGET: self._formulas})
        # Cells say their alignment in a style, which the page's content security policy forbids.
        return _clean(_ALIGNED.sub(r' align="\1"', rendered))

    def _highlighted(self, code: str, language: str, _: str) -> str:
        """Return code as HTML; nothing leaves the code as it is."""
        return self._code.run(lambda: highlighted(code, language)) or ""


def read(content: bytes, _: Json) -> dict[str, str]:
    """Return the HTML of a JSON list of Markdown texts, as a JSON list."""
    markup = Markup()
    return {"text": json.dumps([markup.html(text) for text in json.loads(content)])}


def _clean(html: str) -> str:
    return nh3.clean(
        html.encode(errors="replace").decode(),  # without the halves of characters that models may write
        tags={*_BLOCKS, *_INLINE, *_TABLES, *ELEMENTS},
        attributes=_ATTRIBUTES,
        attribute_filter=_kept,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
        clean_content_tags={"script", "style"},
        strip_comments=True,
    )


def _math_inline(state: StateInline, silent: bool) -> bool:
    """Take a formula: its backslashes, stars and underscores are no Markdown."""
    source = _source(state.src, state.pos, state.posMax)
    if source is None:
        return False
    if not silent:
        html = _formula(state.env, _latex(source), block=not source.startswith(r"\("))
        state.push("html_inline", "", 0).content = html or escapeHtml(source)
    state.pos += len(source)
    return True


def _source(text: str, start: int, end: int) -> str | None:
    """Return the formula that begins at a place of a text, with what it stands between; None if there is none."""
    environment = _MATH_ENVIRONMENT.match(text, start, end)
    closing = rf"\end{environment[1]}" if environment else _MATH.get(text[start : start + 2])
    if closing is None:
        return None
    found = text.find(closing, start + 2, min(end, start + _MATH_CHARACTERS))
    return None if found < 0 else text[start : found + len(closing)]


def _latex(source: str) -> str:
    """Return a formula without what it stands between. An environment stays: it says how its lines are drawn."""
    return source if source.startswith(r"\begin") else source[2:-2]


def _dollars_inline(state: StateInline, silent: bool) -> bool:
    """Take a formula between single dollars, if it is one: anything else is Markdown."""
    if not state.src.startswith("$", state.pos):
        return False
    found = _DOLLARS.match(state.src, state.pos, min(state.posMax, state.pos + _MATH_CHARACTERS))
    html = _formula(state.env, found[1], block=False) if found else None
    if found is None or html is None:
        return False
    if not silent:
        state.push("html_inline", "", 0).content = html
    state.pos = found.end()
    return True


def _math_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take lines from one that begins a formula to the one that ends it; they are no lists and no headings."""
    if state.is_code_block(start):
        return False
    first = state.bMarks[start] + state.tShift[start]
    found = _source(state.src, first, state.eMarks[end - 1])
    if found is None or found.startswith(r"\("):
        return False
    after = first + len(found)
    last = next((line for line in range(start, end) if after <= state.eMarks[line]), end)
    if last == end or state.src[after : state.eMarks[last]].strip():
        return False
    if silent:
        return True
    source = state.getLines(start, last + 1, state.blkIndent, False).strip()
    html = _formula(state.env, _latex(source), block=True)
    state.push("html_block", "", 0).content = f"<p>{html or _plain(source)}</p>\n"
    state.line = last + 1
    return True


def _linked(renderer: RendererHTML, tokens: Sequence[Token], at: int, options: OptionsDict, env: Any) -> str:
    """Return an image as a link to it, or as its text if it is not elsewhere: nothing is loaded."""
    address = str(tokens[at].attrs.get("src", ""))
    words = escapeHtml(renderer.renderInlineAsText(tokens[at].children, options, env).strip() or "Image")
    return f'<a href="{escapeHtml(address)}">{words}</a>' if _leads_out(address) else words


def _too_deep(state: StateBlock, start: int, end: int, _: bool) -> bool:
    """Take all that is left of a block that is nested deeply, as plain text."""
    if state.level < _PLAIN_NESTING:
        return False
    # A line that only continues a paragraph in a quotation has a negative indentation.
    after = (at for at in range(start + 1, end) if not (state.isEmpty(at) or state.sCount[at] < 0))
    last = next((at for at in after if state.sCount[at] < state.blkIndent), end)
    source = state.getLines(start, last, state.blkIndent, False).strip()
    state.push("html_block", "", 0).content = f"<p>{_plain(source)}</p>\n"
    state.line = last
    return True


def _plain(source: str) -> str:
    return "<br>\n".join(escapeHtml(line.strip()) for line in source.split("\n"))


def _formula(env: Mapping[str, Any], latex: str, *, block: bool) -> str | None:
    """Return the MathML of a formula; None if it cannot be converted."""
    budget: CpuBudget = env[_BUDGET]
    return budget.run(lambda: mathml_of(latex, block=block))


def _kept(element: str, name: str, value: str) -> str | None:
    """Return the value of an attribute; None drops it."""
    if name == "href":
        # A relative link would lead into the page itself.
        return value if _leads_out(value) else None
    if name in ("rel", "target"):
        return value  # those that nh3 sets itself: Markdown has none
    # nh3 lets titles and languages pass on every element.
    pattern = _ALLOWED.get((element, name))
    return value if pattern and pattern.fullmatch(value) else None


def _leads_out(address: str) -> bool:
    return address.split(":", 1)[0].lower() in ("http", "https", "mailto")
