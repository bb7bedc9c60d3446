"""Foreign Markdown becomes no markup that runs, loads or names anything in the page."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.features.page.markup import Markup

ELEMENTS: Final = set(
    "a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre s span strong table tbody td th thead tr ul".split()  # noqa: SIM905
)
FORMULA: Final = set(
    (  # noqa: SIM905
        "math menclose mfrac mi mn mo mover mpadded mphantom mroot mrow mspace msqrt mstyle msub msubsup msup mtable mtd"
        " mtext mtr munder munderover"
    ).split()
)
OF_FORMULAS: Final = set(
    (  # noqa: SIM905
        "accent columnalign columnlines columnspacing depth display displaystyle fence form height largeop"
        " linethickness lspace mathvariant maxsize minsize movablelimits notation rowlines rowspacing rspace"
        " scriptlevel separator stretchy symmetric voffset width"
    ).split()
)
ATTRIBUTES: Final = {
    "a": {"href", "rel", "target"},
    "code": {"class"},
    "ol": {"start"},
    "span": {"class"},
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
    *(
        r"\(\text{<img src=x onerror=alert(1)>}\)",
        r"\(\href{javascript:alert(1)}{x}\)",
        r"$$\style{position:fixed}{x} \class{evil}{x} \color{red}{x}$$",
        r"\[\hspace{99999em}\rule{9999px}{9999px}\begin{matrix}a&b\\c\end{matrix}\]",
        "$x_1$",
        r"\(\mathrm{</math><script>alert(1)</script>}\)",
        r"\(\text{&lt;script&gt;}\)",
    ),
    "```html\n<script>alert(1)</script><b onclick='x'>\n```",
    "```python\ndef f(): return '<img src=x onerror=alert(1)>'\n```",
)


def html_of(markdown: str) -> str:
    """Return the HTML of a text."""
    return Markup().html(markdown)


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
        assert tag in ELEMENTS | FORMULA
        assert attributes.keys() <= (OF_FORMULAS if tag in FORMULA else ATTRIBUTES.get(tag, set())), (tag, attributes)
        assert all(
            re.fullmatch(r"[a-z -]+|-?\d{0,2}(\.\d+)?\w*", attributes[name] or "")
            for name in attributes
            if tag in FORMULA
        )
        if href := attributes.get("href"):
            assert re.match("(?i)(https?:|mailto:)", href)
        if tag == "a":
            assert attributes["rel"] == "noopener noreferrer nofollow"
            assert attributes["target"] == "_blank"
        if name := attributes.get("class"):
            assert re.fullmatch("hl-[a-z]+" if tag == "span" else "language-[A-Za-z0-9_+#.-]{1,30}", name)


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
        ("![alt](http://h/i.png)", '<p><a href="http://h/i.png" target="_blank" rel="noopener noreferrer nofollow">alt</a></p>\n'),
        ('![**r**](//h/x) ![](x.png) ![<b>](y "t")', "<p>r Image &lt;b&gt;</p>\n"),
        ("one\ntwo", "<p>one<br>\ntwo</p>\n"),
        ("7. x", '<ol start="7">\n<li>x</li>\n</ol>\n'),
        ("<b>x</b>", "<p>&lt;b&gt;x&lt;/b&gt;</p>\n"),
        ("~~x~~", "<p><s>x</s></p>\n"),
    ],
)  # fmt: skip
def test_markdown_becomes_html(markdown: str, html: str) -> None:
    assert html_of(markdown) == html


@pytest.mark.parametrize(
    "nested",
    [
        "\n".join(f"{'  ' * depth}- **l{depth}**" for depth in range(20)),
        "\n".join(f"{'   ' * depth}1. l{depth}" for depth in range(20)),
        "".join("> " * (depth + 1) + f"l{depth}\n" for depth in range(50)),
        "> " * 50 + "l0\nl1",
        "- > " * 30 + "l0\n\n  l1",
    ],
)
def test_blocks_nested_deeply_keep_their_text_and_what_follows(nested: str) -> None:
    html = html_of(f"{nested}\n\nAfter **it**\n\n|a|b|\n|-|-|\n|1|2|\n")
    check_is_harmless(html)
    words = re.findall(r"\bl\d+", nested)
    assert re.findall(r"\bl\d+", html) == words
    assert "<p>After <strong>it</strong></p>" in html
    assert "<td>2</td>" in html


def test_table_keeps_its_alignment() -> None:
    assert '<td align="right">2</td>' in html_of("|a|b|\n|:-|-:|\n|1|2|\n")


@pytest.mark.parametrize(
    "formula",
    [
        r"\(\unknown{a} * b_2 * c_3\)",
        r"\(\newcommand{\x}{\y\y} \x\)",
        r"\(\{x\} \\ y\)",
        r"\(\frac{1\)",
        r"\(\begin{unknown}a & b\end{unknown}\)",
        r"\(\href{https://example.org}{a}\)",
        r"\(" + "a_1 + " * 1_000 + r"\)",
        r"\(" + "{" * 300 + "a" + "}" * 300 + r"\)",
        r"\(" + r"\sqrt{" * 60 + "a" + "}" * 60 + r"\)",
        "\\[\n- a \\\\\n# b_1 * c_2\n= d\n\\]",
        "$$\n1. \\unknown{a}\n\n+ b\n$$",
        "\\begin{align}\n- a \\\\\n\n# \\unknown{b_1 * c_2}\n\\end{align}",
    ],
)
def test_formula_that_cannot_be_converted_is_kept_as_it_is(formula: str) -> None:
    html = html_of(
        f"Take **it**: {formula} and *so* on." if "\n" not in formula else f"Take **it**:\n{formula}\nand *so*."
    )
    text = unescape(re.sub("<[^>]+>", "", html))
    assert formula in text
    assert "<strong>it</strong>" in html
    assert "<em>so</em>" in html


@pytest.mark.parametrize(
    ("formula", "display", "part"),
    [
        (r"\(a^2\)", "inline", "<msup><mi>a</mi><mn>2</mn></msup>"),
        ("$x_1$", "inline", "<msub><mi>x</mi><mn>1</mn></msub>"),
        (r"\[\frac{a}{b}\]", "block", "<mfrac>"),
        ("$$\n\\sum_{i=1}^n x_i\n$$", "block", "<munderover><mo>∑</mo>"),
        (r"$$\begin{pmatrix}a&b\\c&d\end{pmatrix}$$", "block", "<mtr><mtd><mi>c</mi></mtd><mtd><mi>d</mi></mtd></mtr>"),
        (r"\[\begin{aligned}a&=b\\c&=d\end{aligned}\]", "block", "<mtr>"),
        (r"\[\begin{gathered}a\\b\end{gathered}\]", "block", "<mtr>"),
        ("\\begin{align}\na &= b_1 \\label{x} \\\\\n- c &= d_2\n\\end{align}", "block", "<mtr>"),
        (r"\begin{align*}a &= b \nonumber\end{align*}.", "block", "<mi>b</mi></mtd></mtr></mtable>"),
        (r"\begin{alignat}{2}a &= b\end{alignat}", "block", "<mi>b</mi>"),
        (r"\begin{equation}\begin{split}a &= b\end{split}\end{equation}", "block", "<mi>b</mi>"),
        (r"\begin{gather}a \\ b\end{gather}", "block", "</mtr><mtr>"),
        (r"\(\text{<b>}\)", "inline", "<mtext>&lt;b&gt;</mtext>"),
    ],
)
def test_formula_becomes_mathml(formula: str, display: str, part: str) -> None:
    html = html_of(f"Take **it**:\n{formula}")
    assert f'<math display="{display}">' in html
    assert part in html
    assert "<strong>it</strong>" in html


@pytest.mark.parametrize("text", ["$5 and $10", "$HOME/$USER", "a $ b $ c", "$$", "`$a$`", r"\$a$", "$\\unknown$"])
def test_dollars_that_are_no_formula_stay(text: str) -> None:
    assert "<math" not in html_of(text)
    assert unescape(re.sub("<[^>]+>", "", html_of(text))).strip() == text.strip("`").replace(r"\$", "$")


def test_code_of_a_known_language_is_highlighted() -> None:
    html = html_of('```python\ndef f(x):  # <b>\n    return "a" + 1\n```')
    assert '<span class="hl-keyword">def</span> <span class="hl-name">f</span>(x):' in html
    assert '<span class="hl-comment"># &lt;b&gt;</span>' in html
    assert '<span class="hl-string">"a"</span> + <span class="hl-number">1</span>' in html
    assert unescape(re.sub("<[^>]+>", "", html)).removesuffix("\n") == 'def f(x):  # <b>\n    return "a" + 1\n'


@pytest.mark.parametrize("fence", ["```nosuchlanguage\nx = 1\n```", "```python\n" + "x = 1\n" * 6_000 + "```"])
def test_code_of_another_language_or_of_great_length_has_no_colours(fence: str) -> None:
    assert "hl-" not in html_of(fence)


def test_code_and_formulas_that_take_too_long_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object, **__: object) -> str:
        while True:
            re.fullmatch("(a+)+b", "a" * 30)

    for name in ("highlighted", "mathml_of"):
        monkeypatch.setattr(f"llama_stack_responses.features.page.markup.{name}", endless)
    html = Markup(seconds=0.05, step_seconds=0.02).html("```python\nx\n```\n\n\\(a^2\\)" + " and \\(b\\)" * 9)
    assert '<pre><code class="language-python">x\n</code></pre>' in html
    assert "<p>\\(a^2\\) and \\(b\\)" in html


def test_library_that_makes_another_error_of_the_end_of_its_time_leaves_the_code_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiled(*_: object) -> str:
        try:
            re.fullmatch("(a+)+b", "a" * 30)
        except Exception as error:
            raise ValueError("uncompilable regex") from error
        raise AssertionError("not stopped")

    monkeypatch.setattr("llama_stack_responses.features.page.markup.highlighted", compiled)
    html = Markup(seconds=0.05, step_seconds=0.02).html("```python\nx\n```")
    assert html == '<pre><code class="language-python">x\n</code></pre>\n'


@pytest.mark.parametrize(
    "text",
    [
        r"\(no end *so*",
        r"\[ no end *so*",
        "$$ no end *so*",
        r"\begin{align} no end *so* \end{gather}",
        r"\begin{itemize} *so* \end{itemize}",
        r"\*no\* *so*",
    ],
)
def test_beginning_of_a_formula_without_its_end_is_markdown(text: str) -> None:
    assert "<em>so</em>" in html_of(text)


def test_formula_in_code_is_code() -> None:
    assert html_of(r"`\(a\)`") == "<p><code>\\(a\\)</code></p>\n"
    assert "<script" not in html_of("\\[\n<script>alert(1)</script>\n\\]")
