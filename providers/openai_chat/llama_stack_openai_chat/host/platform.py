"""The host's names that this package uses, from llama-stack or OGX.

llama-stack became OGX, with the same extension points under other package names. The imported one is the host.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or "ogx" not in sys.modules:
    from llama_stack.core.request_headers import PROVIDER_DATA_VAR, NeedsRequestProviderData
    from llama_stack_api import Api, HealthResponse, HealthStatus, Model, ModelType, RemoteProviderSpec, RerankResponse
    from llama_stack_api.common.errors import UnsupportedModelError
    from llama_stack_api.inference import InferenceProvider
    from llama_stack_api.inference.models import (
        OpenAIChatCompletionChunkWithReasoning,
        OpenAIChatCompletionRequestWithExtraBody,
        OpenAICompletionRequestWithExtraBody,
        OpenAIEmbeddingsRequestWithExtraBody,
        OpenAIEmbeddingsResponse,
        RerankRequest,
    )
else:
    from ogx.core.request_headers import PROVIDER_DATA_VAR, NeedsRequestProviderData
    from ogx_api import Api, HealthResponse, HealthStatus, Model, ModelType, RemoteProviderSpec, RerankResponse
    from ogx_api.common.errors import UnsupportedModelError
    from ogx_api.inference import InferenceProvider
    from ogx_api.inference.models import (
        OpenAIChatCompletionChunkWithReasoning,
        OpenAIChatCompletionRequestWithExtraBody,
        OpenAICompletionRequestWithExtraBody,
        OpenAIEmbeddingsRequestWithExtraBody,
        OpenAIEmbeddingsResponse,
        RerankRequest,
    )

__all__ = [
    "PROVIDER_DATA_VAR",
    "Api",
    "HealthResponse",
    "HealthStatus",
    "InferenceProvider",
    "Model",
    "ModelType",
    "NeedsRequestProviderData",
    "OpenAIChatCompletionChunkWithReasoning",
    "OpenAIChatCompletionRequestWithExtraBody",
    "OpenAICompletionRequestWithExtraBody",
    "OpenAIEmbeddingsRequestWithExtraBody",
    "OpenAIEmbeddingsResponse",
    "RemoteProviderSpec",
    "RerankRequest",
    "RerankResponse",
    "UnsupportedModelError",
]
