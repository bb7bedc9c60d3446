"""The provider specifications, with which the host finds and builds the providers."""

from __future__ import annotations

from typing import Final

from llama_stack_openai_chat.host.spec import get_provider_spec as openai_chat

from .platform import SAFETY, Api, InlineProviderSpec, RemoteProviderSpec

_OPTIONAL: Final = (
    Api.files,
    Api.file_processors,
    Api.prompts,
    Api.tool_runtime,
    Api.vector_io,
    Api.connectors,
    Api.providers,
)


_SEARCHES: Final = {
    "searxng": (
        "SearxngConfig",
        "llama-stack-responses",
        "Web search by a SearXNG server, which needs no key.",
    ),
    "ddgs": (
        "DdgsConfig",
        "llama-stack-responses[ddgs]",
        "Web search by public search engines, which needs neither key nor server.",
    ),
}
"""The web searches of this package by the names of their modules: config class, package, description."""

WEB_SEARCHES: Final = frozenset(f"remote::{name}" for name in _SEARCHES)
"""The provider types of these."""


def provider_specs() -> list[InlineProviderSpec | RemoteProviderSpec]:
    """Return all providers of this package."""
    return [_responses(), *(_web_search(name, *about) for name, about in _SEARCHES.items()), openai_chat()]


def _responses() -> InlineProviderSpec:
    return InlineProviderSpec(
        api=Api.responses,
        provider_type="inline::kv",
        module="llama_stack_responses.host",
        config_class="llama_stack_responses.config.ResponsesConfig",
        pip_packages=["llama-stack-responses"],
        api_dependencies=[Api.inference],
        optional_api_dependencies=[*_OPTIONAL, SAFETY] if SAFETY else [*_OPTIONAL],
        description="OpenAI's Responses API with its own routes, on SQLite, Redis or PostgreSQL.",
    )


def _web_search(name: str, settings: str, package: str, description: str) -> RemoteProviderSpec:
    """Return the specification of a web search provider in the module `name`, with the config class `settings`."""
    module = f"llama_stack_responses.host.{name}"
    return RemoteProviderSpec(
        api=Api.tool_runtime,
        adapter_type=name,
        provider_type=f"remote::{name}",
        module=module,
        config_class=f"{module}.{settings}",
        pip_packages=[package],
        toolgroup_id="builtin::websearch",
        description=description,
    )
