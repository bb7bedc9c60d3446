"""What a model server said when it refused a chat request, and which parameter it named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

from ...core.errors import ApiError
from ...core.late_patterns import LatePattern

_READ_CHARACTERS: Final = 2_000
"""Maximum characters of a text that are searched: a server may repeat the request in it."""

_SHOWN_CHARACTERS: Final = 1_000
_DEPTH: Final = 8
_MAX_PLACES: Final = 32
_PLACE_CHARACTERS: Final = 200
_PLACES: Final = ("param", "loc", "field", "path")
"""Members of an error that name a place in the request: OpenAI's and Azure's, pydantic's, Google's, zod's."""

_OUTER: Final = frozenset({"body", "request", "data", "json"})
"""First parts of a place that stand for the request."""

_UNSUPPORTED: Final = LatePattern(
    r"not (?:\w+ )?(?:support|permit|allow|implement|available|enabl|recogni[sz]|accept|compatible)|incompatible"
    r"|n't support|unsupported|no longer (?:support|allow|accept|available)|not (?:in|among|one of) the\b"
    r"|unrecogni[sz]ed|unknown(?! error)|unexpected(?! error)|unavailable"
    r"|extra (?:inputs|fields|parameters?)|forbidden|cannot find field"
    r"|no such|(?:cannot|can't|must not|may not|should not) be (?:set|used|specified|combined|modified|changed|adjusted"
    r"|customi[sz]ed|overridden|altered|configured|provided|included|sent)\b|deprecated|disabled"
    r"|must be (?:removed|omitted|unset|null)|invalid (?:parameter|argument|field)\b|no endpoints found"
    r"|only \S{1,40} (?:is|are) (?:allowed|supported|accepted)|(?:cannot|can't) both be"
    r"|\u4e0d\u652f\u6301",
    re.IGNORECASE,
)
"""Words that say that a parameter cannot be used at all, not that its value is wrong."""

_BOUNDED: Final = LatePattern(
    r"(?:less|greater|smaller|larger|more) than|at (?:most|least)|too (?:large|small|high|low|long|big)|out of range"
    r"|\bup to \d|\d to \d|between|must be (?:in|positive|a |an )|exceed|range of|maximum|minimum"
    r"|[<>]=|\u2264|\u2265|\brange\b",
    re.IGNORECASE,
)
"""Words that say that a value is out of its bounds."""

_WITHOUT_LETTERS: Final = LatePattern(r"(?<![A-Za-z0-9_.-])[0-9.-]++(?![A-Za-z0-9_.%-])")
_RANGE: Final = LatePattern(r"\d(?:\.\.|-)\d")
_NUMBER: Final = LatePattern(r"\d{1,9}(?:\.\d{1,9})?")
_BOUNDED_BY: Final = LatePattern(
    r"[<>] ?-?\d|\b(?:above|below|over|under|through|until|max|min)\W{1,3}(?:of )?-?\d", re.IGNORECASE
)
"""Words and marks beside the numbers of a bound, if they do not say that a value is out of it."""

_WORD: Final = LatePattern(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Refusal:
    """What a model server said.

    Attributes:
        status: its HTTP status, or that which the error names.
        text: its words, as plain text.
        code: its code or its type; empty if it has none.
        places: the places in the request that it names in its members, such as `stream_options` or
            `messages.user.name`: without indices.
        of_request: whether its status, its type or its words say that the request is at fault, and not the server.
    """

    status: int
    text: str
    code: str = ""
    places: tuple[str, ...] = ()
    of_request: bool = False

    @cached_property
    def words(self) -> str:
        """The part of the text that is searched."""
        return self.text[:_READ_CHARACTERS]

    @cached_property
    def subject(self) -> str:
        """The part of the searched text that says what is refused: without lists of what is accepted."""
        # Imported when a server refuses: its patterns take longer to compile than those of all other modules together.
        from .subject import subject

        return subject(self.words, _PARAMETERS)

    @cached_property
    def identifiers(self) -> frozenset[str]:
        """All words of its subject, in lower case: most parameters are not among them."""
        return frozenset(_WORD.findall(self.subject.lower()))

    @property
    def shown(self) -> str:
        """What a client reads of the text, as a sentence."""
        text = self.text if len(self.text) <= _SHOWN_CHARACTERS else f"{self.text[:_SHOWN_CHARACTERS]}..."
        return text if text.endswith((".", "!", "?")) else f"{text}."

    @cached_property
    def says_unsupported(self) -> bool:
        """Whether it says that something cannot be used at all."""
        return bool(_UNSUPPORTED.search(self.words) or _UNSUPPORTED.search(self.code.replace("_", " ")))

    @cached_property
    def says_bound(self) -> bool:
        """Whether it says that a value is out of its bounds."""
        return bool(_BOUNDED.search(self.words))

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The numbers in its text that are no part of a name, such as that of a model."""
        found = (_NUMBER.findall(each) for each in _WITHOUT_LETTERS.findall(self.words))
        return tuple(map(float, chain.from_iterable(found)))

    def is_of_number(self, value: float) -> bool:
        """Return whether it is about this value of a parameter, or about bounds of it, and not about all values."""
        if value in self.numbers or self.says_bound or _BOUNDED_BY.search(self.words):
            return True
        return any(_RANGE.search(each) for each in _WITHOUT_LETTERS.findall(self.words))

    @cached_property
    def is_placed(self) -> bool:
        """Whether all the places that it names are parameters, so that its text names no other one."""
        return bool(self._places) and all(_is_parameter(place) for place in self._places)

    @cached_property
    def _places(self) -> tuple[str, ...]:
        """The places that it names, unless its text begins with the name of another parameter: `param` may be wrong."""
        name = self._first_word
        leads = name in _LEADING or (name in _PARAMETERS and self.subject[:1] in _QUOTES)
        return () if leads and all(name not in place.split(".") for place in self.places) else self.places

    @cached_property
    def _first_word(self) -> str:
        first = _FIRST.match(self.subject)
        return first[1].lower() if first else ""

    def begins_with(self, name: str) -> bool:
        """Return whether its text begins with the name of a parameter."""
        return self._first_word == name

    def names(self, path: str, *others: str) -> bool:
        """Return whether it names a parameter, by a place, else in its text.

        Args:
            path: the parameter in the chat request, such as `stream_options` or `tools.function.strict`.
            others: other words for it, which are looked for in the text as they are.
        """
        first, _, last = path.partition(".")
        if any(place == path or place.startswith(f"{path}.") for place in self._places):
            return True
        name = path.rpartition(".")[2]
        if last and any(place.startswith(f"{first}.") and place.endswith(f".{name}") for place in self._places):
            return True
        if self.is_placed and not any(path.startswith(f"{place}.") for place in self._places):
            return False
        if self._mentions(name):
            return True
        return any(other in self._spaced for other in others)

    def _mentions(self, name: str) -> bool:
        """Return whether the text has the name of a parameter.

        A name of several words stands for itself, also in camel case, as xAI has it. One of one word may be a word of
        the sentence, so it must be in quotation marks or after a noun such as "parameter".
        """
        if "_" in name:
            return not self.identifiers.isdisjoint((name, name.replace("_", "")))
        if name not in self.identifiers:
            return False
        return _pattern_of(name).search(self.subject) is not None or name in self._listed

    @cached_property
    def _listed(self) -> frozenset[str]:
        """The parameters in its subject that are in a list of nothing but parameters."""
        lists = (_LISTED.split(each[0].lower()) for each in _LIST.finditer(self.subject))
        return frozenset(name for names in lists if _PARAMETERS.issuperset(names) for name in names)

    @cached_property
    def _spaced(self) -> str:
        """Its subject in lower case, with one space between the words."""
        return " ".join(self.subject.lower().split())


_VAGUE: Final = frozenset({"", "messages", "prompt", "input"})
"""Places that say nothing of a parameter."""

_PARAMETERS: Final = frozenset(
    {
        *("frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "messages", "metadata"),
        *("modalities", "model", "n", "output_config", "parallel_tool_calls", "prediction", "presence_penalty"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning", "reasoning_effort"),
        *("response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream", "stream_options"),
        *("temperature", "text", "thinking", "tool_choice", "tools", "top_k", "top_logprobs", "top_p", "user"),
        *("effort", "verbosity", "web_search_options", "function_declarations"),
        # What other model servers have in addition, which the setting `passthrough` sends.
        *("chat_template_kwargs", "ignore_eos", "length_penalty", "min_p", "min_tokens", "repetition_penalty"),
        *("stop_token_ids", "typical_p"),
    }
)
"""First parts of places in a chat request. Some servers have something else in the member `param`."""
_LEADING: Final = frozenset(name for name in _PARAMETERS if "_" in name) | {"strict", "temperature", "verbosity"}
"""Names of parameters that are no words with which a sentence about another parameter begins."""
_QUOTES: Final = tuple("'\"`")
_LISTED: Final = LatePattern(r"['\"`]?(?:\s?[,;]\s?(?:(?:and|or)\s)?|\s(?:and|or|&)\s)['\"`]?")
_LIST: Final = LatePattern(rf"\b[a-z_]{{1,40}}+(?:{_LISTED.pattern}[a-z_]{{1,40}}+)+", re.IGNORECASE)
"""Names with a separator between them."""
_FIRST: Final = LatePattern(r"\W*([A-Za-z]\w*)")


def _is_parameter(place: str) -> bool:
    return place not in _VAGUE and place.partition(".")[0] in _PARAMETERS


_NOUNS: Final = (
    r"(?:parameters?|params?|arguments?|args?|fields?|propert(?:y|ies)|options?|keys?|names?|inputs?|body)(?:\(s\))?"
    r"(?: supplied| provided| received)?(?: in [a-z ]{1,30})?[:\s]\s?(?:[\w.'\"`]{1,64}, ?){0,16}"
)


_CHINESE_NOUNS: Final = r"(?:\u53c2\u6570|\u5b57\u6bb5|\u5c5e\u6027)"
"""Parameter, field, property."""


def _pattern_of(name: str) -> re.Pattern[str]:
    """Return the pattern of a parameter's name of one word where it is no word of the sentence."""
    from .subject import MARKS

    exact = re.escape(name)
    return re.compile(
        rf"[{MARKS}\[.]{exact}[{MARKS}\].]|[\])]\.{exact}\b|\.function\.{exact}\b|(?<![\w-]){exact} (?:length|format)\b"
        rf"|{_CHINESE_NOUNS}\s?[:\uff1a]?\s?{exact}(?![a-z0-9_])|(?<![a-z0-9_-]){exact}\s?{_CHINESE_NOUNS}"
        rf"|\b{_NOUNS}[{MARKS}\[(]{{0,2}}{exact}\b"
        rf"|^\W{{0,3}}{exact}\b(?:\W|$)|(?<![\w-]){exact}(?: is|=| does| isn't| not|:)"
        rf"|(?<![\w-]){exact} (?:parameter|param|argument|field|option)\b",
        re.IGNORECASE,
    )


class RefusedError(ApiError):
    """The error of a request that the model server refused, and what it said.

    Args:
        error: the error for a client, if nothing else helps.
        refusal: what the server said.
    """

    def __init__(self, error: ApiError, refusal: Refusal) -> None:
        super().__init__(
            error.status,
            error.message,
            type=error.type,
            code=error.code,
            param=error.param,
            retry_after=error.retry_after,
            upstream=error.upstream,
        )
        self.refusal = refusal


_DETAIL: Final = LatePattern(
    r"""['"]loc['"]: ?[\[(]([^\[\]()]{0,200})[\])](?:, ?['"][a-z]+['"]: ?[^,]{0,200})??, ?['"]msg['"]: ?"""
    r"""(?:'([^']{0,500})'|"([^"]{0,500})")"""
)
"""An entry of a list of invalid fields that a server has written into its text, as Python or as JSON."""


_LISTED_FIELD: Final = LatePattern(r"^([A-Za-z_][\w.]{0,199})\n {2}\S", re.MULTILINE)
"""A field in the text of pydantic's error: its place, and what is wrong on the next line."""


def plain(text: str) -> str:
    """Return a text in which lists of invalid fields are sentences."""
    searched = text[:_READ_CHARACTERS].replace('\\"', '"')
    found = [(_parts(each[1]), each[2] or each[3] or "") for each in _DETAIL.finditer(searched)][:_MAX_PLACES]
    return "; ".join(f"{'.'.join(parts)}: {words}" for parts, words in found) or text


def _parts(listed: str) -> list[str]:
    """Return the parts of a place that is written as a list."""
    return [each.strip(" '\"") for each in listed.split(",") if each.strip(" '\"")]


def places_of(body: Any, text: str = "") -> tuple[str, ...]:
    """Return the places in the request that an error names, without indices, each once.

    Args:
        body: the decoded error, whose members name places.
        text: its text, which may have a list of invalid fields.
    """
    read = text[:_READ_CHARACTERS]
    listed: list[Any] = [_parts(each[1]) for each in _DETAIL.finditer(read.replace('\\"', '"'))]
    if "validation error" in read:
        listed += _LISTED_FIELD.findall(read)
    found = (_place(value) for value in chain(_named(body, _DEPTH), listed))
    places = dict.fromkeys(place for place, _ in zip(filter(None, found), range(_MAX_PLACES), strict=False))
    return tuple(places)


def _named(value: Any, depth: int) -> Iterator[Any]:
    """Yield the values of all members that name a place."""
    if depth and isinstance(value, dict):
        for name, each in list(value.items())[:_MAX_PLACES]:
            if name in _PLACES:
                yield each
            elif isinstance(each, dict | list):
                yield from _named(each, depth - 1)
    elif depth and isinstance(value, list):
        for each in value[:_MAX_PLACES]:
            yield from _named(each, depth - 1)


def _place(value: Any) -> str:
    """Return a place as its names with dots between them, such as `messages.user.name`; empty if it has none."""
    if isinstance(value, str):
        value = re.split(r"[.\[\]/]+", value[:_PLACE_CHARACTERS])
    if not isinstance(value, list | tuple):
        return ""
    names = [each for each in value[:_MAX_PLACES] if isinstance(each, str) and each and not each.isdigit()]
    if names and names[0] in _OUTER:
        del names[0]
    return ".".join(names)[:_PLACE_CHARACTERS]
