"""How the host finds and builds the provider."""

from __future__ import annotations

from .platform import Api, InlineProviderSpec


def get_provider_spec() -> InlineProviderSpec:
    """The provider `inline::kv` of the host's `responses` API."""
    return InlineProviderSpec(
        api=Api.responses,
        provider_type="inline::kv",
        module="llama_stack_responses.host",
        config_class="llama_stack_responses.config.ResponsesConfig",
        pip_packages=["llama-stack-responses"],
        api_dependencies=[Api.inference],
        optional_api_dependencies=[Api.files],
        description="OpenAI's Responses API with its own wire, kept in a key-value store.",
    )
