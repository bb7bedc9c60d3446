"""The provider's registration with the host."""

from .platform import Api, InlineProviderSpec


def get_provider_spec() -> InlineProviderSpec:
    """Return the spec of the provider `inline::gpt-oss` of the host's `inference` API."""
    return InlineProviderSpec(
        api=Api.inference,
        provider_type="inline::gpt-oss",
        module="llama_stack_gpt_oss.host",
        config_class="llama_stack_gpt_oss.config.GptOssConfig",
        pip_packages=["llama-stack-gpt-oss"],
        optional_api_dependencies=[Api.providers],
        description="gpt-oss-20b and 120b on the local GPU, in a separate engine process.",
    )
