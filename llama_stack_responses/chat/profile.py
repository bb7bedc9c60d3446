"""Properties of model families: how chat requests are built and answers are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ..core.feature_settings import ProfileSettings, with_features
from .adaptation.adaptation import Step
from .adaptation.registry import dialects


class InlineThinking(BaseModel):
    """Reasoning that the model writes into its text, between two tags.

    Attributes:
        open: the tag before the reasoning.
        close: the tag after it.
        starts_open: the opening tag is part of the prompt, so the text begins inside the reasoning.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    open: str = Field(default="<think>", min_length=1)
    close: str = Field(default="</think>", min_length=1)
    starts_open: bool = False


class Parameters(BaseModel):
    """Changes of the parameters of chat requests, by their names there.

    Attributes:
        drop: parameters that are not sent; `tools.function.strict` is one within others.
        rename: other names for parameters.
        map: other values for parameters, by parameter and value.
        add: parameters that are sent if the request has none of that name, with their values.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    drop: list[str] = Field(default_factory=list)
    rename: dict[str, str] = Field(default_factory=dict)
    map: dict[str, dict[str, Any]] = Field(default_factory=dict)
    add: dict[str, Any] = Field(default_factory=dict)

    def steps(self) -> list[Step]:
        """Return the changes."""
        return [
            *(Step("map", (name, old, new)) for name, values in self.map.items() for old, new in values.items()),
            *(Step("rename", each) for each in self.rename.items()),
            *(Step("drop", each) for each in self.drop),
            *(Step("add", each) for each in self.add.items()),
        ]


def _dialect(name: str) -> str:
    if name not in dialects():
        raise ValueError(f"there is no such dialect; there are {', '.join(sorted(dialects())) or 'none'}")
    return name


Dialect = Annotated[str, AfterValidator(_dialect)]
"""The name of a change that needs no argument, such as one of the messages."""


def steps_of(parameters: Parameters, dialect: Sequence[str]) -> list[Step]:
    """Return the changes of chat requests that a profile names."""
    return [*parameters.steps(), *map(Step, dialect)]


def entry_of(steps: Iterable[Step]) -> dict[str, Any]:
    """Return the fields of a profile that has these changes, without those that only an operator can name."""
    drop, rename, mapped = list[str](), dict[str, str](), dict[str, dict[str, Any]]()
    dialect = list[str]()
    for step in steps:
        match step.kind, step.argument:
            case "drop", str(name):
                drop.append(name)
            case "rename", (name, other):
                rename[name] = other
            case "map", (name, value, other):
                mapped.setdefault(name, {})[value] = other
            case kind, None:
                dialect.append(kind)
    parameters = {name: each for name, each in (("drop", drop), ("rename", rename), ("map", mapped)) if each}
    return {name: each for name, each in (("parameters", parameters), ("dialect", dialect)) if each}


@partial(with_features, kind=ProfileSettings)
class Profile(BaseModel):
    """Properties of the models whose name matches. Features add theirs (`core/feature_settings.py`).

    Attributes:
        match: shell-style pattern for the whole model name, such as `local/qwen3*`.
        system_messages: several system and developer messages are kept (`keep`), those before the first other message
            are merged (`merge_leading`), or all are merged into the first (`merge_all`).
        developer_role: the role for developer messages.
        reasoning_replay: how earlier reasoning returns to the model: `as_received`, in the fields in which it came,
            with all that has to come back unchanged; the field of an assistant message; `think_tags` to put it into the
            text; or `none`. `thinking_blocks` returns only what the provider signed.
        reasoning_context: which reasoning is replayed: that since the last user message, or all.
        reasoning_summary: what a client that asks for summaries gets if the provider sends none: the `text` of the
            reasoning, a `generated` summary, or `none`.
        summary_model: the model that generates summaries, by its name on the host; null for the one that reasoned.
        tool_media: images and files in a tool's output stay in the tool message, or follow in a user message.
        images: whether the model accepts images; if not, questions with them are refused.
        audio: whether the model accepts audio; if not, questions with it are refused.
        image_urls: whether the model server fetches images itself (`pass`), or gets them as data (`fetch`).
        files: whether the model server accepts files; if not, it gets their text.
        inline_thinking: set for models whose server does not separate reasoning from text.
        custom_tools: whether the model server supports custom tools and enforces their grammar (`custom`), or gets each
            as a function with one string and the grammar in its description (`function`).
        context_length: the model's context in tokens, if neither the host nor the model server reports it.
        tokenizer: counts the tokens of texts if the model server does not: the path of a `tokenizer.json`, or the name
            of an encoding of tiktoken.
        max_tokens_field: the chat request's field for the limit on output tokens.
        stream: whether the model server is asked to stream: `always`, only for a client that streams (`as_asked`), or
            `never`. An answer without streaming arrives late and complete, or not at all, and takes less work to read.
        parameters: how the parameters of chat requests are changed.
        dialect: other changes of chat requests, by name, such as those of messages.
    """

    # Its checks are built when it is first used, with the features' settings.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    match: str = "*"
    system_messages: Literal["keep", "merge_leading", "merge_all"] = "merge_leading"
    developer_role: Literal["system", "developer"] = "system"
    reasoning_replay: Literal[
        "as_received", "reasoning_content", "reasoning", "thinking_blocks", "think_tags", "none"
    ] = "as_received"
    reasoning_context: Literal["current_turn", "all_turns"] = "current_turn"
    reasoning_summary: Literal["text", "generated", "none"] = "text"
    summary_model: str | None = None
    tool_media: Literal["tool_message", "user_message"] = "user_message"
    images: bool = True
    image_urls: Literal["pass", "fetch"] = "pass"
    files: bool = False
    audio: bool = True
    inline_thinking: InlineThinking | None = None
    custom_tools: Literal["function", "custom"] = "function"
    context_length: int | None = Field(default=None, ge=1)
    tokenizer: str | None = Field(default=None, min_length=1)
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    stream: Literal["always", "as_asked", "never"] = "always"
    parameters: Parameters = Field(default_factory=Parameters)
    dialect: list[Dialect] = Field(default_factory=list)

    def streaming(self, *, client_streams: bool) -> dict[str, Any]:
        """Return the fields of a chat request that control streaming.

        Args:
            client_streams: whether a client may read the answer while it is generated.
        """
        if self.stream == "always" or (self.stream == "as_asked" and client_streams):
            return {"stream": True, "stream_options": {"include_usage": True}}
        return {"stream": False}

    def replayed_reasoning(self, reasoning: Mapping[str, Any] | None) -> str:
        """Return which reasoning is replayed for a request with this `reasoning`: `current_turn` or `all_turns`."""
        context: str = (reasoning or {}).get("context") or "auto"
        return self.reasoning_context if context == "auto" else context


_DEFAULT: Final = Profile()


def profile_for(model: str, profiles: Sequence[Profile]) -> Profile:
    """Return the first profile that matches the model's name, or the default one."""
    return next((profile for profile in profiles if fnmatchcase(model, profile.match)), _DEFAULT)
