"""Forced calls and enforced schemas: the tokens that a grammar allows, and schemas refused before generation."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from llama_stack_gpt_oss.engine.errors import RequestError
from llama_stack_gpt_oss.errors import InvalidRequest
from llama_stack_gpt_oss.grammar import read_tool_choice, turn_grammar
from llama_stack_gpt_oss.harmony import ResponseFormat, read_response_format
from llama_stack_gpt_oss.masks import GrammarMasks
from llama_stack_gpt_oss.schema_bounds import MAX_OPTIONAL, MAX_PATTERNS, MAX_PROPERTIES
from llama_stack_gpt_oss.tools import Tool, read_tools
from llama_stack_gpt_oss.vocabulary import Vocabulary

from .support.lessons import WEATHER, answer, call

SIZE = 201088
KEPT = 3  # compiled grammars
TOOLS = read_tools(
    [
        WEATHER,
        {"type": "function", "function": {"name": "stop"}},
        {"type": "function", "function": {"name": "python"}},
        {"type": "function", "function": {"name": "browser.search"}},
    ]
)
YES_OR_NO: Mapping[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORMAT = read_response_format({"type": "json_schema", "json_schema": {"name": "x", "schema": YES_OR_NO}})
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"東"}<|call|>'
ADDRESSED = ' to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Oslo"}<|call|>'


@pytest.fixture(scope="module")
def masks(vocabulary: Vocabulary) -> GrammarMasks:
    return GrammarMasks(lambda: vocabulary, SIZE, KEPT)


def grammar(choice: Any, tools: Sequence[Tool] = TOOLS, form: ResponseFormat | None = None) -> str:
    created = turn_grammar(read_tool_choice(choice, tools), tools, form)
    assert created is not None
    created.check()
    return created.text


def optional(count: int, kind: str = "string") -> dict[str, Any]:
    """Return a schema of an object with so many optional properties."""
    return {"type": "object", "properties": {f"{kind}{number}": {"type": kind} for number in range(count)}}


def allowed_text(masks: GrammarMasks, vocabulary: Vocabulary, rules: str, text: str) -> str:
    """Return the beginning of the text that the grammar allows."""
    mask, passed = masks.open(rules), []
    for token in vocabulary.harmony.encode(text, allowed_special="all"):
        bits = mask.allowed()
        assert len(bits) * 8 >= SIZE
        if not bits[token // 8] >> token % 8 & 1:
            break
        mask.accept(token)
        passed.append(token)
    return vocabulary.harmony.decode(passed)


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_unconstrained_request_has_no_grammar(choice: str | None) -> None:
    assert turn_grammar(read_tool_choice(choice, TOOLS), TOOLS, None) is None


@pytest.mark.parametrize(
    "text",
    [
        call("Paris"),
        CALL,
        ADDRESSED,
        "<|channel|>commentary to=functions.stop<|message|>{}<|call|>",
        "<|channel|>analysis to=python code<|message|>print(1)\nprint(2)<|call|>",
        ' to=browser.search<|channel|>commentary code<|message|>{"query":"x"}<|call|>',
    ],
)
def test_required_call_may_use_any_tool(masks: GrammarMasks, vocabulary: Vocabulary, text: str) -> None:
    assert allowed_text(masks, vocabulary, grammar("required"), text) == text


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        (answer("Hm.", "No."), "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>"),
        ("<|channel|>commentary to=functions.other", "<|channel|>commentary to=functions"),
        (
            '<|channel|>commentary to=functions.get_weather json<|message|>{"city":"x"}',
            "<|channel|>commentary to=functions.get_weather",
        ),
        (CALL.replace("city", "town"), CALL.partition("city")[0]),
    ],
)
def test_required_call_allows_only_the_call(
    masks: GrammarMasks, vocabulary: Vocabulary, text: str, passes: str
) -> None:
    assert allowed_text(masks, vocabulary, grammar("required"), text) == passes


def test_named_call_allows_only_that_function(masks: GrammarMasks, vocabulary: Vocabulary) -> None:
    rules = grammar({"type": "function", "function": {"name": "get_weather"}})
    assert allowed_text(masks, vocabulary, rules, CALL) == CALL
    assert (
        allowed_text(masks, vocabulary, rules, "<|channel|>commentary to=functions.stop")
        == "<|channel|>commentary to=functions"
    )


@pytest.mark.parametrize(("mode", "answers"), [("auto", True), ("required", False)])
def test_allowed_tools_limit_calls(masks: GrammarMasks, vocabulary: Vocabulary, mode: str, answers: bool) -> None:
    tools = [{"type": "function", "name": "get_weather"}]
    rules = grammar({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
    assert allowed_text(masks, vocabulary, rules, CALL) == CALL
    assert (
        allowed_text(masks, vocabulary, rules, "<|channel|>commentary to=functions.stop")
        == "<|channel|>commentary to=functions"
    )
    text = answer("Hm.", "No {json} here.")
    assert (allowed_text(masks, vocabulary, rules, text) == text) is answers


def test_response_format_applies_to_answer_only(masks: GrammarMasks, vocabulary: Vocabulary) -> None:
    rules = grammar("auto", form=FORMAT)
    for text in (answer("Any *words*.", '{"ok": true}'), call("Rome")):
        assert allowed_text(masks, vocabulary, rules, text) == text
    refused = allowed_text(masks, vocabulary, rules, answer("x", '{"ok": 1}'))
    assert refused.rstrip().endswith('final<|message|>{"ok":')
    assert allowed_text(masks, vocabulary, rules, answer("x", "No.")).endswith("final<|message|>")


def test_strict_arguments_apply_without_forced_call(masks: GrammarMasks, vocabulary: Vocabulary) -> None:
    strict = read_tools([{"type": "function", "function": {**WEATHER["function"], "strict": True}}])
    rules = grammar("auto", tools=strict, form=FORMAT)
    assert allowed_text(masks, vocabulary, rules, CALL.replace("city", "town")) == CALL.partition("city")[0]
    loose = grammar("auto", tools=TOOLS[:1], form=FORMAT)
    assert allowed_text(masks, vocabulary, loose, CALL.replace("city", "town")) == CALL.replace("city", "town")


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ("always", "tool_choice is auto"),
        ({"type": "function", "function": {"name": "gone"}}, "names 'gone', which is not among the tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [3]}}, "lists functions by name"),
    ],
)
def test_invalid_tool_choice_is_refused(choice: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        read_tool_choice(choice, TOOLS)


def test_required_call_without_tools_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="there are no tools"):
        read_tool_choice("required", ())


def test_unenforceable_schema_is_refused_before_generation(masks: GrammarMasks) -> None:
    form = ResponseFormat("x", {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}})
    with pytest.raises(InvalidRequest, match=r"The schema cannot be enforced.*look-around") as refusal:
        grammar("auto", form=form)
    assert refusal.value.param == "response_format"
    with pytest.raises(RequestError, match="The grammar cannot be used"):
        masks.open("start: nothing")


def test_schema_cannot_break_out_of_grammar(masks: GrammarMasks, vocabulary: Vocabulary) -> None:
    evil = json.loads('{"type": "object", "title": "}\\nfinal: TEXT", "additionalProperties": false}')
    rules = grammar("auto", form=ResponseFormat("x", evil))
    assert allowed_text(masks, vocabulary, rules, answer("x", "No.")).endswith("final<|message|>")


def test_mask_is_same_after_rollback(masks: GrammarMasks, vocabulary: Vocabulary) -> None:
    """Drafts are accepted and taken back while their masks are computed, up to the one that ends the call."""
    mask, tokens = masks.open(grammar("required")), vocabulary.harmony.encode(ADDRESSED, allowed_special="all")
    for place, token in enumerate(tokens):
        before = mask.allowed()
        for later in tokens[place:]:
            mask.accept(later)
        mask.rollback(len(tokens) - place)
        assert mask.allowed() == before
        mask.accept(token)


def test_grammar_of_many_answers_is_compiled_once(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes up to a second, and a request may have 128 answers. The last grammars are kept."""
    created: list[str] = []

    def compiled(tokenizer: LLTokenizer, rules: str, **options: Any) -> LLMatcher:
        created.append(rules)
        return LLMatcher(tokenizer, rules, **options)

    monkeypatch.setattr("llama_stack_gpt_oss.masks.LLMatcher", compiled)
    masks = GrammarMasks(lambda: vocabulary, SIZE, KEPT)
    rules = grammar("required")
    first, second = masks.open(rules), masks.open(rules)
    assert created == [rules]
    before = second.allowed()
    first.accept(vocabulary.harmony.encode(CALL, allowed_special="all")[0])
    assert (second.allowed(), masks.open(rules).allowed()) == (before, before)
    assert first.allowed() != before
    masks.compile(grammar("auto", form=FORMAT))
    masks.open(grammar("auto", form=FORMAT))
    masks.open(rules)
    assert len(created) == 2
    for number in range(KEPT):
        masks.open(f'start: "{number}"')
    masks.open(rules)
    assert len(created) == 3 + KEPT


def test_grammar_with_too_many_symbols_is_refused() -> None:
    huge = {"type": "array", "prefixItems": [{"type": "integer"}] * 60_000}
    with pytest.raises(InvalidRequest, match=r"cannot be enforced.*schema too large"):
        grammar("auto", form=ResponseFormat("x", huge))


@pytest.mark.parametrize(("kind", "value"), [("string", '"x"'), ("integer", "5"), ("object", '{"a": [null]}')])
def test_many_optional_properties_are_enforced(
    masks: GrammarMasks, vocabulary: Vocabulary, kind: str, value: str
) -> None:
    schema = {**optional(MAX_OPTIONAL, kind), "additionalProperties": False}
    rules = grammar("none", form=ResponseFormat("x", schema))
    text = answer("Hm.", f'{{"{kind}1": {value}, "{kind}2":{value},"{kind}{MAX_OPTIONAL - 1}": {value}}}')
    assert allowed_text(masks, vocabulary, rules, text) == text
    unknown = text.replace(f"{kind}2", f"{kind}x")
    assert allowed_text(masks, vocabulary, rules, unknown) == unknown.partition('x":')[0]


def references(count: int) -> dict[str, Any]:
    """Return a schema with a chain of references."""
    parts = {f"d{number}": {"type": "array", "items": {"$ref": f"#/$defs/d{number + 1}"}} for number in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{count}": {"type": "integer"}}}


def patterns(count: int) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {f"^a{number}$": True for number in range(count)}}


def text(number: int) -> dict[str, Any]:
    return {"type": "string", "pattern": f".*a.{{{number}}}b.*"}


def texts_in_references(count: int) -> dict[str, Any]:
    """Return a schema whose references lead from one pattern for the same text to the next one."""
    parts = {f"d{number}": {**text(number), "$ref": f"#/$defs/d{number + 1}"} for number in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{count}": {"type": "string"}}}


def texts_in_alternatives(count: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    for number in range(count):
        made = {**text(number), "anyOf": [made]}
    return made


def texts_of_property(count: int) -> dict[str, Any]:
    return {"allOf": [{"type": "object", "properties": {"a": text(number)}} for number in range(count)]}


def required(count: int, named: int = 0) -> dict[str, Any]:
    """Return a schema with required properties; `named` of them have a schema."""
    names = [f"p{number}" for number in range(count)]
    return {"type": "object", "properties": dict.fromkeys(names[:named], True), "required": names}


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (optional(5000), "has an object with 5,000 optional properties, and at most 256 can be enforced"),
        (required(MAX_PROPERTIES + 1), "has 5,001 properties, and at most 5,000 can be enforced"),
        (required(40_000, 40_000), "has 40,000 properties, and at most 5,000 can be enforced"),
        (patterns(MAX_PATTERNS + 1), "has 65 patternProperties, and at most 64 can be enforced"),
        (texts_in_references(20), "may combine 20 patterns for one text, and at most 8 can be enforced"),
        (texts_in_alternatives(20), "may combine 20 patterns"),
        (texts_of_property(20), "may combine 20 patterns"),
        (references(1000), "has 1,001 references and [45] levels of nesting: use fewer"),
    ],
)
def test_schema_that_would_take_too_much_is_refused(schema: dict[str, Any], sentence: str) -> None:
    """In llguidance, some of them overflow the stack, which ends the process, and others take minutes."""
    with pytest.raises(InvalidRequest, match=f"The schema {sentence}") as refusal:
        grammar("auto", form=ResponseFormat("x", {"type": "array", "items": schema}))
    assert refusal.value.param == "response_format"
    function = {"name": "f", "strict": True, "parameters": schema}
    with pytest.raises(InvalidRequest, match=sentence) as refusal:
        grammar("required", tools=read_tools([{"type": "function", "function": function}]))
    assert refusal.value.param == "tools"


@pytest.mark.parametrize(
    "schema",
    [
        {**optional(MAX_PROPERTIES), "required": list(optional(MAX_PROPERTIES)["properties"])},
        required(MAX_PROPERTIES),
        patterns(MAX_PATTERNS),
        references(250),
        {"type": "object", "properties": {f"p{number}": text(number) for number in range(50)}},
    ],
)
def test_schema_within_bounds_is_compiled_in_a_thread(masks: GrammarMasks, schema: dict[str, Any]) -> None:
    """The stack of a thread is the smallest one on which schemas are compiled."""
    with ThreadPoolExecutor(1) as pool:
        rules = pool.submit(grammar, "none", TOOLS, ResponseFormat("x", schema)).result()
        assert pool.submit(masks.open, rules).result().failed is False


def test_mask_fails_when_schema_allows_too_much(masks: GrammarMasks, vocabulary: Vocabulary) -> None:
    """The optional properties of the parts add up, which is known only when the object begins."""
    parts = [optional(MAX_OPTIONAL, kind) for kind in ("string", "integer")]
    mask = masks.open(grammar("none", form=ResponseFormat("x", {"allOf": parts})))
    failed = []
    for token in vocabulary.harmony.encode('<|channel|>final<|message|>{"', allowed_special="all"):
        mask.allowed()
        mask.accept(token)
        failed.append(mask.failed)
    assert failed == [False, False, False, True]
