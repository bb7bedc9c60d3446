"""The host's names that this package uses, imported from the running host.

llama-stack became OGX, with the same extension points under other package names. The package that is already imported
is the one that loads this provider.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Receive, Scope, Send

if TYPE_CHECKING or "ogx" not in sys.modules:
    from llama_stack.core.access_control.access_control import AccessDeniedError, default_policy, is_action_allowed
    from llama_stack.core.configure import parse_and_maybe_upgrade_config
    from llama_stack.core.conversations.conversations import ConversationServiceConfig, ConversationServiceImpl
    from llama_stack.core.datatypes import AccessRule, AuthenticationRequiredError, StackConfig, User
    from llama_stack.core.exceptions.translation import translate_exception
    from llama_stack.core.prompts.prompts import PromptServiceConfig, PromptServiceImpl
    from llama_stack.core.request_headers import (
        PROVIDER_DATA_VAR,
        RequestProviderDataContext,
        get_authenticated_user,
        user_from_scope,
    )
    from llama_stack.core.server import fastapi_router_registry
    from llama_stack.core.stack import EnvVarError
    from llama_stack.core.stack import _initialize_storage as initialize_storage
    from llama_stack.core.storage.datatypes import KVStoreReference, ResponsesStoreReference
    from llama_stack.core.storage.kvstore import kvstore_impl
    from llama_stack.core.storage.sqlstore.sqlstore import shutdown_sqlstore_backends
    from llama_stack.log import get_logger as set_log_category
    from llama_stack.providers.registry.files import available_providers as file_provider_specs
    from llama_stack.providers.utils.inference.inference_store import InferenceStore
    from llama_stack.providers.utils.responses.responses_store import ResponsesStore
    from llama_stack_api import (
        Api,
        InlineProviderSpec,
        ListToolDefsResponse,
        OpenAIAssistantMessageParam,
        OpenAIUserMessageParam,
        RemoteProviderSpec,
        RunModerationRequest,
        RunShieldRequest,
        ToolDef,
        ToolInvocationResult,
    )
    from llama_stack_api.common.errors import (
        InvalidParameterError,
        ModelNotFoundError,
        ModelTypeError,
        ResourceNotFoundError,
        UnsupportedModelError,
    )
    from llama_stack_api.file_processors.models import ProcessFileRequest
    from llama_stack_api.files.models import (
        DeleteFileRequest,
        ExpiresAfter,
        OpenAIFilePurpose,
        RetrieveFileContentRequest,
        RetrieveFileRequest,
        UploadFileRequest,
    )
    from llama_stack_api.inference.models import OpenAIChatCompletionRequestWithExtraBody as ChatRequest
    from llama_stack_api.inference.models import OpenAICompletionRequestWithExtraBody as CompletionRequest
    from llama_stack_api.inference.models import OpenAIEmbeddingsRequestWithExtraBody as EmbeddingsRequest
    from llama_stack_api.prompts.models import DeletePromptRequest, GetPromptRequest, ListPromptVersionsRequest
    from llama_stack_api.router_utils import PUBLIC_ROUTE_KEY
    from llama_stack_api.vector_io.models import OpenAISearchVectorStoreRequest, SearchRankingOptions

    SAFETY: Final[Api | None] = Api.safety
    PROVIDER_DATA_HEADER: Final = "X-LlamaStack-Provider-Data"
    SERVER: Final = "llama_stack.core.server.server"
    CONFIG_VARIABLE: Final = "LLAMA_STACK_CONFIG"
else:
    from ogx.core.access_control.access_control import AccessDeniedError, default_policy, is_action_allowed
    from ogx.core.configure import parse_and_maybe_upgrade_config
    from ogx.core.conversations.conversations import ConversationServiceConfig, ConversationServiceImpl
    from ogx.core.datatypes import AccessRule, AuthenticationRequiredError, StackConfig, User
    from ogx.core.exceptions.translation import translate_exception
    from ogx.core.prompts.prompts import PromptServiceConfig, PromptServiceImpl
    from ogx.core.request_headers import (
        PROVIDER_DATA_VAR,
        RequestProviderDataContext,
        get_authenticated_user,
        user_from_scope,
    )
    from ogx.core.server import fastapi_router_registry
    from ogx.core.stack import EnvVarError
    from ogx.core.stack import _initialize_storage as initialize_storage
    from ogx.core.storage.datatypes import KVStoreReference, ResponsesStoreReference
    from ogx.core.storage.kvstore import kvstore_impl
    from ogx.core.storage.sqlstore.sqlstore import shutdown_sqlstore_backends
    from ogx.log import get_logger as set_log_category
    from ogx.providers.registry.files import available_providers as file_provider_specs
    from ogx.providers.utils.inference.inference_store import InferenceStore
    from ogx.providers.utils.responses.responses_store import ResponsesStore
    from ogx_api import (
        Api,
        InlineProviderSpec,
        ListToolDefsResponse,
        RemoteProviderSpec,
        ToolDef,
        ToolInvocationResult,
    )
    from ogx_api.common.errors import (
        InvalidParameterError,
        ModelNotFoundError,
        ModelTypeError,
        ResourceNotFoundError,
        UnsupportedModelError,
    )
    from ogx_api.file_processors.models import ProcessFileRequest
    from ogx_api.files.models import (
        DeleteFileRequest,
        ExpiresAfter,
        OpenAIFilePurpose,
        RetrieveFileContentRequest,
        RetrieveFileRequest,
        UploadFileRequest,
    )
    from ogx_api.inference.models import OpenAIChatCompletionRequestWithExtraBody as ChatRequest
    from ogx_api.inference.models import OpenAICompletionRequestWithExtraBody as CompletionRequest
    from ogx_api.inference.models import OpenAIEmbeddingsRequestWithExtraBody as EmbeddingsRequest
    from ogx_api.prompts.models import DeletePromptRequest, GetPromptRequest, ListPromptVersionsRequest
    from ogx_api.router_utils import PUBLIC_ROUTE_KEY
    from ogx_api.vector_io.models import OpenAISearchVectorStoreRequest, SearchRankingOptions

    PROVIDER_DATA_HEADER: Final = "X-OGX-Provider-Data"
    SERVER: Final = "ogx.core.server.server"
    CONFIG_VARIABLE: Final = "OGX_CONFIG"
    # OGX has no Safety API.
    SAFETY: Final = None
    OpenAIAssistantMessageParam = OpenAIUserMessageParam = RunModerationRequest = RunShieldRequest = None

ServerCall = Callable[[Any, Scope, Receive, Send], Awaitable[Any]]
"""The `__call__` of a class of the host's server, as a function."""

__all__ = [
    "CONFIG_VARIABLE",
    "PROVIDER_DATA_HEADER",
    "PROVIDER_DATA_VAR",
    "PUBLIC_ROUTE_KEY",
    "SAFETY",
    "SERVER",
    "AccessDeniedError",
    "AccessRule",
    "Api",
    "AuthenticationRequiredError",
    "ChatRequest",
    "CompletionRequest",
    "ConversationServiceConfig",
    "ConversationServiceImpl",
    "DeleteFileRequest",
    "DeletePromptRequest",
    "EmbeddingsRequest",
    "EnvVarError",
    "ExpiresAfter",
    "GetPromptRequest",
    "InferenceStore",
    "InlineProviderSpec",
    "InvalidParameterError",
    "KVStoreReference",
    "ListPromptVersionsRequest",
    "ListToolDefsResponse",
    "ModelNotFoundError",
    "ModelTypeError",
    "OpenAIAssistantMessageParam",
    "OpenAIFilePurpose",
    "OpenAISearchVectorStoreRequest",
    "OpenAIUserMessageParam",
    "ProcessFileRequest",
    "PromptServiceConfig",
    "PromptServiceImpl",
    "RemoteProviderSpec",
    "RequestProviderDataContext",
    "ResourceNotFoundError",
    "ResponsesStore",
    "ResponsesStoreReference",
    "RetrieveFileContentRequest",
    "RetrieveFileRequest",
    "RunModerationRequest",
    "RunShieldRequest",
    "SearchRankingOptions",
    "ServerCall",
    "StackConfig",
    "ToolDef",
    "ToolInvocationResult",
    "UnsupportedModelError",
    "UploadFileRequest",
    "User",
    "default_policy",
    "fastapi_router_registry",
    "file_provider_specs",
    "get_authenticated_user",
    "initialize_storage",
    "is_action_allowed",
    "kvstore_impl",
    "parse_and_maybe_upgrade_config",
    "set_log_category",
    "shutdown_sqlstore_backends",
    "translate_exception",
    "user_from_scope",
]
