"""The module that the host imports for `module: llama_stack_gpt_oss` in a stack's configuration."""

from .host.spec import get_provider_spec

__all__ = ["get_provider_spec"]
