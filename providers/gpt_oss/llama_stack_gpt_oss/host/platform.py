"""The host's names that this package uses, from llama-stack or OGX.

llama-stack became OGX, with the same extension points under other package names. The imported one is the host.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or "ogx" not in sys.modules:
    from llama_stack_api import Api, HealthResponse, HealthStatus, InlineProviderSpec, Model, ModelType
    from llama_stack_api.inference import InferenceProvider
    from llama_stack_api.inference.models import (
        OpenAIChatCompletionChunkWithReasoning,
        OpenAIChatCompletionRequestWithExtraBody,
        OpenAIChatCompletionWithReasoning,
        OpenAICompletionRequestWithExtraBody,
        OpenAIEmbeddingsRequestWithExtraBody,
        OpenAIEmbeddingsResponse,
    )
else:
    from ogx_api import Api, HealthResponse, HealthStatus, InlineProviderSpec, Model, ModelType
    from ogx_api.inference import InferenceProvider
    from ogx_api.inference.models import (
        OpenAIChatCompletionChunkWithReasoning,
        OpenAIChatCompletionRequestWithExtraBody,
        OpenAIChatCompletionWithReasoning,
        OpenAICompletionRequestWithExtraBody,
        OpenAIEmbeddingsRequestWithExtraBody,
        OpenAIEmbeddingsResponse,
    )

__all__ = [
    "Api",
    "HealthResponse",
    "HealthStatus",
    "InferenceProvider",
    "InlineProviderSpec",
    "Model",
    "ModelType",
    "OpenAIChatCompletionChunkWithReasoning",
    "OpenAIChatCompletionRequestWithExtraBody",
    "OpenAIChatCompletionWithReasoning",
    "OpenAICompletionRequestWithExtraBody",
    "OpenAIEmbeddingsRequestWithExtraBody",
    "OpenAIEmbeddingsResponse",
]
