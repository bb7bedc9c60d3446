"""The provider's registration with the host."""

from __future__ import annotations

from .platform import Api, RemoteProviderSpec


def get_provider_spec() -> RemoteProviderSpec:
    """Return the spec of the provider `remote::openai-chat` of the host's `inference` API."""
    return RemoteProviderSpec(
        api=Api.inference,
        adapter_type="openai-chat",
        provider_type="remote::openai-chat",
        module="llama_stack_openai_chat.host",
        config_class="llama_stack_openai_chat.config.OpenAIChatConfig",
        provider_data_validator="llama_stack_openai_chat.config.OwnKey",
        pip_packages=["llama-stack-responses"],
        description="Any OpenAI-compatible model server (vLLM, SGLang, llama.cpp, Ollama, OpenAI) at a small CPU cost.",
    )
