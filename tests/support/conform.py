"""Validation of JSON values against the `openai` package's types: nothing missing, nothing wrong, nothing extra.

The package's models allow extra keys, and its own parser does not validate. So the types are traversed here: unions of
models are resolved by their discriminator, objects by the model's keys, and everything else is validated by pydantic in
strict mode (no "1" for 1).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeAliasType, Union, get_args, get_origin

from openai.types.responses import (
    Response,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCustomToolCall,
    ResponseCustomToolCallOutput,
    ResponseError,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseFunctionWebSearch,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseStreamEvent,
)
from openai.types.responses.response_item import LocalShellCallOutput
from openai.types.responses.response_text_delta_event import Logprob as DeltaLogprob
from openai.types.responses.response_text_delta_event import LogprobTopLogprob as DeltaTopLogprob
from openai.types.responses.response_text_done_event import Logprob as DoneLogprob
from openai.types.responses.response_text_done_event import LogprobTopLogprob as DoneTopLogprob
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from tests.support.own_types import OWN_RESPONSE_FIELDS, own_problem

# Exceptions to the types, with reasons:
# - the code by which Codex recognises a context that is too long is not in the types' list;
ALLOWED_VALUES: Final[dict[tuple[type[BaseModel], str], tuple[str, ...]]] = {
    (ResponseError, "code"): ("context_length_exceeded",)
}
# - OpenAI and the Open Responses specification send `bytes` in the logprobs of events, as in those of parts.
# - a local shell's output refers to its call by `call_id` like all others; its type has the call's id as its own.
# - OpenAI sends a status with custom tool calls and their outputs; only the types for lists of items have it.
ALLOWED_KEYS: Final[dict[type[BaseModel], frozenset[str]]] = {
    **dict.fromkeys((DeltaLogprob, DeltaTopLogprob, DoneLogprob, DoneTopLogprob), frozenset({"bytes"})),
    **dict.fromkeys((ResponseCustomToolCall, ResponseCustomToolCallOutput), frozenset({"status"})),
    LocalShellCallOutput: frozenset({"call_id"}),
    # OpenAI sends `billing`, `store` and the penalties with each response; the Open Responses specification requires the
    # latter three.
    Response: frozenset({"billing"}) | OWN_RESPONSE_FIELDS,
    # Required by the clients and schemas of llama-stack and OGX.
    **dict.fromkeys(
        (
            ResponseOutputItemAddedEvent,
            ResponseOutputItemDoneEvent,
            ResponseContentPartAddedEvent,
            ResponseContentPartDoneEvent,
        ),
        frozenset({"response_id"}),
    ),
    # OpenAI's API reference requires it; this version of the package lacks it.
    ResponseFunctionCallArgumentsDoneEvent: frozenset({"name"}),
    # `include` can request them, but the type lacks them.
    ResponseFunctionWebSearch: frozenset({"results"}),
}
DISCRIMINATORS: Final = ("type", "role", "mode")

type Tag = tuple[str, Any]


class WireError(AssertionError):
    """A violation that a strict client would reject."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A violation, and its path: `response.output[0].content`."""

    path: str
    what: str

    def __str__(self) -> str:
        """Return one line of text."""
        return f"{self.path or '(root)'}: {self.what}"


def validate_event(event: dict[str, Any]) -> None:
    """Raise WireError unless `event` is exactly one of the types in `ResponseStreamEvent`."""
    _raise(f"event {event.get('type')!r}", problems(ResponseStreamEvent, event))


def validate_response(response: dict[str, Any]) -> None:
    """Raise WireError unless `response` is exactly the type `Response`."""
    _raise("response", problems(Response, response, "response"))


def problems(annotation: Any, value: Any, path: str = "") -> list[Problem]:
    """Return all violations of `annotation` by `value`; an empty list if it is valid."""
    annotation = _bare(annotation)
    origin = get_origin(annotation)
    if _is_model(annotation):
        return list(_model(annotation, value, path))
    if origin in (Union, UnionType):
        return _union(get_args(annotation), value, path)
    if origin in (list, Sequence, Iterable) and isinstance(value, list):
        (member,) = get_args(annotation)
        return [found for index, each in enumerate(value) for found in problems(member, each, f"{path}[{index}]")]
    if origin is dict and isinstance(value, dict):
        _, member = get_args(annotation)
        return [found for key, each in value.items() for found in problems(member, each, f"{path}.{key}")]
    return _leaf(annotation, value, path)


def _raise(what: str, found: Sequence[Problem]) -> None:
    if found:
        raise WireError("\n  ".join([f"{what} is not what the types say:", *map(str, found)]))


def _model(model: type[BaseModel], value: Any, path: str) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield Problem(path, f"not an object but {value!r:.80}")
        return
    fields = _fields(model)
    for name, field in fields.items():
        here = f"{path}.{name}" if path else name
        if name not in value:
            if field.is_required():
                yield Problem(here, f"missing, but {model.__name__} requires it")
        elif value[name] not in ALLOWED_VALUES.get((model, name), ()):
            yield from problems(field.annotation, value[name], here)
    for name in value.keys() - fields.keys() - _allowed_keys(model):
        yield Problem(f"{path}.{name}" if path else name, f"{model.__name__} has no such key")


def _allowed_keys(model: type[BaseModel]) -> frozenset[str]:
    """Return the allowed extra keys of a type and its bases (WebSocket events are subclasses of stream events)."""
    return frozenset().union(*(ALLOWED_KEYS.get(base, frozenset()) for base in model.__mro__))


def _union(members: tuple[Any, ...], value: Any, path: str) -> list[Problem]:
    """Return no problems if one member matches; otherwise those of the intended or closest member."""
    if value is None and NoneType in members:
        return []
    candidates = _meant(members, value)
    if not candidates:
        try:
            wrong = own_problem(value)
        except (KeyError, TypeError):
            wrong = None
        else:
            return [Problem(path, wrong)] if wrong else []
        tags = sorted({str(tag) for member in _flatten(members) if _is_model(member) for _, tag in _tags(member)})
        return [Problem(path, f"{value!r:.80} is none of the union's members {', '.join(tags)}")]
    return min((problems(member, value, path) for member in candidates), key=len)


def _meant(members: tuple[Any, ...], value: Any) -> Sequence[Any]:
    """Return the members with the value's discriminator; members other than models only for non-objects."""
    if isinstance(value, dict):
        tags = ((name, value[name]) for name in DISCRIMINATORS if name in value)
        return _tagged(members, tuple((name, tag if isinstance(tag, str) else None) for name, tag in tags))
    others = [member for member in _flatten(members) if not _is_model(member) and member is not NoneType]
    lists = [member for member in others if get_origin(member) is list]
    return lists if lists and isinstance(value, list) else others


@lru_cache(maxsize=4096)
def _tagged(members: tuple[Any, ...], tags: tuple[Tag, ...]) -> tuple[Any, ...]:
    """Return the members that an object with these tags can be; dicts and such only if no model matches."""
    flat = _flatten(members)
    models = tuple(member for member in flat if _is_model(member) and _fits(member, dict(tags)))
    return models or tuple(member for member in flat if get_origin(member) is dict or member in (Any, object))


@cache
def _flatten(members: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a union's members, with nested unions flattened."""
    bare = (_bare(member) for member in members)
    nested = (_flatten(get_args(each)) if get_origin(each) in (Union, UnionType) else (each,) for each in bare)
    return tuple(each for inner in nested for each in inner)


def _fits(model: type[BaseModel], tags: dict[str, Any]) -> bool:
    own = _tags(model)
    if not own:
        return True
    name = own[0][0]
    return (name, tags[name]) in own if name in tags else not _fields(model)[name].is_required()


@cache
def _tags(model: type[BaseModel]) -> tuple[Tag, ...]:
    """Return the (key, literal) pairs that identify a model in a union: its `type`, or a substitute."""
    for name in DISCRIMINATORS:
        field = _fields(model).get(name)
        literals = [each for each in _flatten((field.annotation,)) if get_origin(each) is Literal] if field else []
        if literals:
            return tuple((name, value) for literal in literals for value in get_args(literal))
    return ()


@cache
def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return a model's fields by their names on the wire."""
    model.model_rebuild()  # deferred by the package; until then annotations may be mere names
    return {field.alias or name: field for name, field in model.model_fields.items()}


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def _leaf(annotation: Any, value: Any, path: str) -> list[Problem]:
    try:
        _adapter(annotation).validate_python(value, strict=True)
    except ValidationError as error:
        return [Problem(path, f"{value!r:.80}: {each['msg']}") for each in error.errors()]
    return []


def _bare(annotation: Any) -> Any:
    """Return an annotation without metadata, with aliases resolved."""
    while True:
        if isinstance(annotation, TypeAliasType):
            annotation = annotation.__value__
        elif get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        else:
            return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
