"""Foreign Markdown becomes no markup that runs, loads or names anything in the page."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.features.page.markup import html_of

ELEMENTS: Final = set(
    "a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre s strong table tbody td th thead tr ul".split()  # noqa: SIM905
)
ATTRIBUTES: Final = {
    "a": {"href", "rel", "target"},
    "code": {"class"},
    "ol": {"start"},
    "td": {"align"},
    "th": {"align"},
}
PIECES: Final = (
    *(
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "<svg/onload=alert(1)>",
        "<a href=javascript:1>x</a>",
    ),
    *("[x](javascript:alert(1))", "[x](JAVA\tSCRIPT:alert(1))", "[x](data:text/html,<script>)", "[x](vbscript:x)"),
    *(
        "![x](http://h/x.png)",
        "[x](/ui/evil)",
        "[x](//h/evil)",
        "<javascript:alert(1)>",
        "[r]: javascript:alert(1)\n[r]",
    ),
    *(
        "```js onload=x\ncode\n```",
        '```" onclick="x\n```',
        "|a|b|\n|:-|-:|\n|1|2|\n",
        "&lt;script&gt;",
        "&#106;avascript:",
    ),
    *(
        '[a](http://x "t\' onclick=x")',
        "`",
        "**",
        "~~",
        "<!--",
        "-->",
        "]]>",
        "<![CDATA[",
        "\0",
        "\ud83d",
        "\u202e",
        "<style>*{}</style>",
    ),
    *(
        "<iframe srcdoc=x>",
        "<math><mi xlink:href=javascript:x>",
        "<form action=x>",
        "1. ",
        "> ",
        "# ",
        "    ",
        "\n",
        "\n\n",
        "<",
        '"',
        "'",
    ),
)


class HtmlCollector(HTMLParser):
    """Collects what a parser of HTML finds."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.others: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_comment(self, data: str) -> None:
        self.others.append(data)

    def handle_decl(self, decl: str) -> None:
        self.others.append(decl)

    def handle_pi(self, data: str) -> None:
        self.others.append(data)

    def unknown_decl(self, data: str) -> None:
        self.others.append(data)


def check_is_harmless(html: str) -> None:
    seen = HtmlCollector()
    seen.feed(html)
    seen.close()
    assert seen.others == []
    for tag, attributes in seen.elements:
        assert tag in ELEMENTS
        assert attributes.keys() <= ATTRIBUTES.get(tag, set()), (tag, attributes)
        if href := attributes.get("href"):
            assert re.match("(?i)(https?:|mailto:)", href)
        if tag == "a":
            assert attributes["rel"] == "noopener noreferrer nofollow"
            assert attributes["target"] == "_blank"
        if name := attributes.get("class"):
            assert re.fullmatch("language-[A-Za-z0-9_+#.-]{1,30}", name)


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=20)), max_size=12).map("".join))
def test_no_markdown_becomes_markup_that_runs(markdown: str) -> None:
    check_is_harmless(html_of(markdown))


@pytest.mark.parametrize("piece", PIECES)
def test_hostile_piece_becomes_no_markup_that_runs(piece: str) -> None:
    check_is_harmless(html_of(piece))


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("a **b** `c<d`", "<p>a <strong>b</strong> <code>c&lt;d</code></p>\n"),
        ("```py\nx\n```", '<pre><code class="language-py">x\n</code></pre>\n'),
        ("![alt](http://h/i.png)", '<p>!<a href="http://h/i.png" target="_blank" rel="noopener noreferrer nofollow">alt</a></p>\n'),
        ("one\ntwo", "<p>one<br>\ntwo</p>\n"),
        ("7. x", '<ol start="7">\n<li>x</li>\n</ol>\n'),
        ("<b>x</b>", "<p>&lt;b&gt;x&lt;/b&gt;</p>\n"),
        ("~~x~~", "<p><s>x</s></p>\n"),
    ],
)  # fmt: skip
def test_markdown_becomes_html(markdown: str, html: str) -> None:
    assert html_of(markdown) == html


def test_table_keeps_its_alignment() -> None:
    assert '<td align="right">2</td>' in html_of("|a|b|\n|:-|-:|\n|1|2|\n")


@pytest.mark.parametrize(
    "formula",
    [
        r"\(a^2\)",
        r"\(a_1 * b_2 * c_3\)",
        r"\(\{x\} \\ y\)",
        r"$$\sum_{i=1}^n x_i \\ y_*$$",
        "\\[\n- a \\\\\n# b_1 * c_2\n= d\n\\]",
        "$$\n1. \\{a\\}\n\n+ b\n$$",
    ],
)
def test_formula_is_kept_as_it_is(formula: str) -> None:
    html = html_of(
        f"Take **it**: {formula} and *so* on." if "\n" not in formula else f"Take **it**:\n{formula}\nand *so*."
    )
    text = unescape(re.sub("<[^>]+>", "", html))
    assert formula in text
    assert "<strong>it</strong>" in html
    assert "<em>so</em>" in html


@pytest.mark.parametrize("text", [r"\(no end *so*", r"\[ no end *so*", "$$ no end *so*", r"\*no\* *so*"])
def test_beginning_of_a_formula_without_its_end_is_markdown(text: str) -> None:
    assert "<em>so</em>" in html_of(text)


def test_formula_in_code_is_code() -> None:
    assert html_of(r"`\(a\)`") == "<p><code>\\(a\\)</code></p>\n"
    assert "<script" not in html_of("\\[\n<script>alert(1)</script>\n\\]")
