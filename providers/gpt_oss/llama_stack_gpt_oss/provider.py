"""What the host imports when a stack's configuration says `module: llama_stack_gpt_oss`."""

from .host.spec import get_provider_spec

__all__ = ["get_provider_spec"]
