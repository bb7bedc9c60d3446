"""Parsing of chat and completion requests, from any object with their fields."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from .engine.config import GenerationDefaults
from .engine.engine import Request
from .engine.sampling_params import SamplingParams
from .errors import InvalidRequest
from .grammar import TurnGrammar, read_tool_choice, turn_grammar
from .harmony import Chat, read_effort, read_response_format, render
from .prompt import Prompt
from .tools import Tool, read_tools
from .vocabulary import Vocabulary

MAX_STOPS, MAX_CHOICES, MAX_LOGPROBS = 4, 128, 20
MAX_SALT = 1024  # characters
MAX_BIASES, MAX_BIAS, MAX_PENALTY = 300, 100, 2
TOKEN_DIGITS = 9  # of an id
SHOWN = 40  # characters of an invalid id in an error


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A parsed request: the engine's request, and the parameters for the conversion of its tokens.

    grammar: the grammar of the request, unchecked.
    """

    request: Request
    grammar: TurnGrammar | None
    tools: tuple[Tool, ...]
    stops: tuple[str, ...]
    logprobs: bool
    include_usage: bool

    def with_usage(self) -> "ParsedRequest":
        """Return the request with usage, which answers that are not streamed always include."""
        return replace(self, include_usage=True)


class RequestParser:
    """Parses requests for one model. `context`: maximum tokens of a prompt with its answer."""

    def __init__(self, vocabulary: Vocabulary, defaults: GenerationDefaults, context: int) -> None:
        self._vocabulary = vocabulary
        self._defaults = defaults
        self.context = context

    def chat(self, params: Any, today: date) -> ParsedRequest:
        """Parse a chat request. InvalidRequest names the invalid field."""
        try:
            return self._chat(params, today)
        except RecursionError:
            raise InvalidRequest("The tools, response_format or messages are nested too deeply") from None

    def _chat(self, params: Any, today: date) -> ParsedRequest:
        tools = read_tools(_plain(_get(params, "tools")))
        choice = read_tool_choice(_plain(_get(params, "tool_choice")), tools)
        form = read_response_format(_plain(_get(params, "response_format")))
        # With `none`, the tools are left out of the prompt.
        shown = tools if choice.allowed else ()
        grammar = turn_grammar(choice, shown, form)
        chat = Chat(
            messages=[_plain(message) for message in params.messages],
            today=today,
            tools=shown,
            effort=read_effort(_get(params, "reasoning_effort")),
            response_format=form,
        )
        prompt = render(self._vocabulary, chat, self.context)
        logprobs = int(_get(params, "top_logprobs") or 0) if _get(params, "logprobs") else None
        most = _get(params, "max_completion_tokens") or _get(params, "max_tokens")
        return self._parsed(params, prompt, most, logprobs, grammar, shown)

    def completion(self, params: Any) -> ParsedRequest:
        """Parse a text completion: a prompt of text or tokens, used without Harmony formatting."""
        for name in ("echo", "suffix", "logprobs"):
            if _get(params, name):
                raise InvalidRequest(f"{name} is not supported", param=name)
        prompt = self._tokens(params.prompt)
        return self._parsed(params, prompt, _get(params, "max_tokens") or 16, None, None, ())

    def _tokens(self, prompt: Any) -> list[int]:
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        made = Prompt(self._vocabulary, self.context, "prompt")
        if isinstance(prompt, str):
            made.add_text(prompt)
            return made.tokens
        if not isinstance(prompt, list) or not all(isinstance(token, int) for token in prompt):
            raise InvalidRequest("A completion takes one prompt: a text, or a list of tokens", param="prompt")
        for token in prompt:
            if not self._vocabulary.knows(token):
                raise InvalidRequest(f"{token} is not a token of the model's vocabulary", param="prompt")
        made.add(prompt)
        return made.tokens

    def _parsed(
        self,
        params: Any,
        prompt: list[int],
        most: int | None,
        logprobs: int | None,
        grammar: TurnGrammar | None,
        tools: tuple[Tool, ...],
    ) -> ParsedRequest:
        _refuse_repetition_penalty(params)
        sampling = SamplingParams(
            max_tokens=most or self.context,
            temperature=_number(params, "temperature", self._defaults.temperature, 0, 2),
            top_p=_number(params, "top_p", self._defaults.top_p, 0, 1),
            top_k=_top_k(params),
            min_p=_number(params, "min_p", 0.0, 0, 1),
            seed=_integer(params, "seed", secrets.randbits(32)),
            top_logprobs=logprobs,
            stop_ids=self._defaults.stop_ids,
            priority=_integer(params, "priority", 0),
            cache_salt=_salt(params),
            **self._adjustments(params),
        )
        name, choices = secrets.token_hex(12), _integer(params, "n", 1)
        if not 1 <= choices <= MAX_CHOICES:
            raise InvalidRequest(f"n is between 1 and {MAX_CHOICES}", param="n")
        if logprobs is not None and not 0 <= logprobs <= MAX_LOGPROBS:
            raise InvalidRequest(f"top_logprobs is between 0 and {MAX_LOGPROBS}", param="top_logprobs")
        ids = tuple(f"{name}-{number}" for number in range(choices))
        options = _plain(_get(params, "stream_options")) or {}
        return ParsedRequest(
            request=Request(ids, prompt, sampling, grammar.text if grammar else None),
            grammar=grammar,
            tools=tools,
            stops=_stops(params),
            logprobs=logprobs is not None,
            include_usage=bool(options.get("include_usage")),
        )

    def _adjustments(self, params: Any) -> dict[str, Any]:
        """Return the parameters that change logits.

        Special tokens are not penalised: each message of a turn has the same ones, and Harmony cannot do without them.
        """
        names = ("frequency_penalty", "presence_penalty")
        penalties = {name: _number(params, name, 0.0, -MAX_PENALTY, MAX_PENALTY) for name in names}
        special = self._vocabulary.special.values() if any(penalties.values()) else ()
        return penalties | {"logit_bias": self._logit_bias(params), "unpenalised": frozenset(special)}

    def _logit_bias(self, params: Any) -> tuple[tuple[int, float], ...]:
        given = _get(params, "logit_bias") or {}
        if not isinstance(given, Mapping) or len(given) > MAX_BIASES:
            raise InvalidRequest(f"logit_bias is an object of up to {MAX_BIASES} token ids", param="logit_bias")
        return tuple((self._biased(str(name)), _bias(value)) for name, value in given.items())

    def _biased(self, name: str) -> int:
        """Return the token of a key of logit_bias."""
        token = int(name) if name.isascii() and name.isdigit() and len(name) <= TOKEN_DIGITS else -1
        if not self._vocabulary.knows(token):
            raise InvalidRequest(
                f"logit_bias: {name[:SHOWN]!r} is not the id of a token of the model's vocabulary", param="logit_bias"
            )
        return token


def _get(params: Any, name: str) -> Any:
    return getattr(params, name, None)


def _plain(value: Any) -> Any:
    """Convert the host's models to JSON; JSON stays unchanged."""
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_none=True, by_alias=True)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _stops(params: Any) -> tuple[str, ...]:
    given = _get(params, "stop") or ()
    stops = (given,) if isinstance(given, str) else tuple(given)
    if len(stops) > MAX_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise InvalidRequest(f"stop takes up to {MAX_STOPS} texts that are not empty", param="stop")
    return stops


def _salt(params: Any) -> str:
    salt = str(_get(params, "cache_salt") or "")
    if len(salt) > MAX_SALT:
        raise InvalidRequest(f"cache_salt has at most {MAX_SALT} characters", param="cache_salt")
    return salt


def _refuse_repetition_penalty(params: Any) -> None:
    if _get(params, "repetition_penalty") not in (None, 1):
        raise InvalidRequest(
            "repetition_penalty is not supported by gpt-oss's engine: use frequency_penalty or presence_penalty",
            param="repetition_penalty",
        )


def _number(params: Any, name: str, default: float, low: float, high: float) -> float:
    value = _get(params, name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidRequest(f"{name} is a number between {low} and {high}", param=name)
    return float(value)


def _bias(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_BIAS <= value <= MAX_BIAS:
        raise InvalidRequest(
            f"logit_bias: each bias is a number between -{MAX_BIAS} and {MAX_BIAS}", param="logit_bias"
        )
    return float(value)


def _top_k(params: Any) -> int:
    """Return the number of tokens to choose from; 0, as for -1, for all."""
    value = _integer(params, "top_k", 0)
    if not -1 <= value < 1 << 31:
        raise InvalidRequest("top_k is -1, 0 or a number of tokens", param="top_k")
    return max(value, 0)


def _integer(params: Any, name: str, default: int) -> int:
    value = _get(params, name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 63:
        raise InvalidRequest(f"{name} is a whole number", param=name)
    return value
