"""What one family of models needs of a chat request, and how its answers are to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field


class InlineThinking(BaseModel):
    """Reasoning that the model writes into its text, between two tags.

    Attributes:
        open: the tag before the reasoning.
        close: the tag after it.
        starts_open: the opening tag stands in the prompt, so the text begins inside the reasoning.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    open: str = Field(default="<think>", min_length=1)
    close: str = Field(default="</think>", min_length=1)
    starts_open: bool = False


class Profile(BaseModel):
    """How to talk to the models whose name matches.

    Attributes:
        match: shell-style pattern on the whole model name, such as `local/qwen3*`.
        system_messages: several system and developer messages stay as they are (`keep`), those before the first
            other message are merged (`merge_leading`), or all are merged into the first (`merge_all`).
        developer_role: the role that developer messages get.
        reasoning_replay: the field of an assistant message in which earlier reasoning goes back to the
            model, `think_tags` for its text, or `none`; in `thinking_blocks`, only what the provider signed.
        reasoning_context: whose reasoning goes back: that since the last user message, or all of it.
        reasoning_summary: what a client that asks for summaries gets where the provider sends none: the `text` of the
            reasoning, a `generated` summary, or `none`.
        summary_model: the model that generates summaries, as the host names it; null for the one that reasoned.
        tool_media: images and files in a tool's output stay in the tool message, or follow in a user message.
        images, audio: whether the model takes such input; a request with it is refused if not.
        image_urls: whether the model's server fetches images by itself (`pass`), or is sent them as data (`fetch`).
        files: whether the model's server takes files as they are; where not, it gets their text.
        inline_thinking: set for models whose server does not separate the reasoning from the text.
        custom_tools: whether the model's server knows custom tools and holds the model to their grammar (`custom`),
            or sees each as a function with one string, the grammar in its description (`function`).
        web_search: how the model is shown the web search: as `functions` that any model understands, or as the
            `browser` that gpt-oss has learned.
        context_length: the tokens that the model's context has, where neither the host nor the model server says so.
        tokenizer: counts the tokens of texts where the model server does not: the path of a `tokenizer.json`, or the
            name of an encoding of tiktoken's.
        max_tokens_field: the chat request's name for the bound on output tokens.
        stream: whether the model server is asked to stream: `always`, only for a client that does (`as_asked`), or
            `never`. What is not streamed comes late and whole, or not at all, and takes less work to read.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    match: str = "*"
    system_messages: Literal["keep", "merge_leading", "merge_all"] = "merge_leading"
    developer_role: Literal["system", "developer"] = "system"
    reasoning_replay: Literal["reasoning_content", "reasoning", "thinking_blocks", "think_tags", "none"] = (
        "reasoning_content"
    )
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
    web_search: Literal["functions", "browser"] = "functions"
    context_length: int | None = Field(default=None, ge=1)
    tokenizer: str | None = Field(default=None, min_length=1)
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    stream: Literal["always", "as_asked", "never"] = "always"

    def streaming(self, *, asked: bool) -> dict[str, Any]:
        """What a chat request says of streaming.

        Args:
            asked: whether somebody may read the answer while it is made.
        """
        if self.stream == "always" or (self.stream == "as_asked" and asked):
            return {"stream": True, "stream_options": {"include_usage": True}}
        return {"stream": False}

    def replayed_reasoning(self, asked: Mapping[str, Any] | None) -> str:
        """Whose reasoning goes back for a request with this `reasoning`: `current_turn`, or that of `all_turns`."""
        context: str = (asked or {}).get("context") or "auto"
        return self.reasoning_context if context == "auto" else context


_DEFAULT: Final = Profile()


def profile_for(model: str, profiles: Sequence[Profile]) -> Profile:
    """The first profile that matches the model's name, or the default one."""
    return next((profile for profile in profiles if fnmatchcase(model, profile.match)), _DEFAULT)
