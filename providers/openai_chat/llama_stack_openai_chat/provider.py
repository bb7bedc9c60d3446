"""The module that the host imports for `module: llama_stack_openai_chat` in a stack's configuration."""

from .host.spec import get_provider_spec

__all__ = ["get_provider_spec"]
