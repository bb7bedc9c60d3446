"""The integration with the host, llama-stack or its successor OGX. Only this folder imports the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..admission import Admission
from ..config import ResponsesConfig
from ..config.services import Fetching
from ..config.stores import HostStore
from ..core.discovery import modules_of_features
from ..core.setting_values import WrongConfiguration
from ..feature import Feature, Stack
from ..fetch.address_policy import AddressPolicy
from ..fetch.resolver import LookupLimits, Resolver
from ..generation.activity import Activity
from ..generation.dependencies import Dependencies
from ..inputs.attachments import Attachments, open_attachments
from ..inputs.files import Files, NoFiles
from ..inputs.moderation import NoModeration
from ..logs import DELETED, ENDED, bound_tracebacks, plain_lines
from ..process_pool.pool import WorkerPool
from ..sealing.sealer import Sealer
from ..service.responses import OpenAIResponsesImpl
from ..store.audit_log import AuditLog
from ..store.factory import open_records, secret_keeper
from ..store.instrumented import MeasuredRecords
from ..store.object_events import ObjectEvents
from ..store.records import Records
from ..store.tiers import with_tiers
from ..telemetry.instrumentation import Telemetry
from ..tools.hosted.runtime import NoToolRuntime, ToolRuntime
from ..tools.mcp.on_demand import McpOnDemand
from ..tools.mcp.servers import McpSessionFactory
from ..tools.registry import HostedToolServices
from ..wire.operators import Operators
from .allowed_models import limit_models
from .configuration import check_running_auth
from .connectors import HostConnectors
from .file_processors import file_processor
from .files import HostFiles
from .identity import HostAccess
from .inference import HostInference
from .inference_routes import limit_inference_routes
from .keyvalue import backend
from .large_files import HostLargeFiles
from .model_refresh import ModelRefresh
from .patches import skip_disabled_levels
from .plain_inference import HostPlainInference
from .platform import SAFETY, AccessRule, Api, set_log_category
from .prompts import HostPrompts
from .replaced_routes import leave_out
from .responses_provider import ResponsesProvider
from .safety import HostSafety
from .start_errors import sentence_last
from .tool_runtime import HostToolRuntime, forget_tool_groups_without_provider
from .vector_stores import HostVectorStores, take_default_embedding_model

__all__ = ["get_provider_impl"]


async def get_provider_impl(
    config: ResponsesConfig, deps: dict[Api, Any], policy: list[AccessRule]
) -> ResponsesProvider:
    """Build the provider, and inject every object that outlives a request.

    The host calls this in an event loop that does not serve requests, so no object created here may be bound to a loop.

    Raises:
        WrongConfiguration: a setting cannot be used here.
    """
    with sentence_last():
        return await _provider(config, deps, policy)


async def _provider(config: ResponsesConfig, deps: dict[Api, Any], policy: list[AccessRule]) -> ResponsesProvider:
    await _prepare_host(config)
    access, telemetry = HostAccess(policy), Telemetry()
    records = _records(config, access, telemetry)
    refresh = _model_refresh(deps[Api.inference])
    inference = _inference(config, deps[Api.inference], refresh)
    plain_inference = HostPlainInference(deps[Api.inference], store_chat_completions=config.store_chat_completions)
    stack = await _stack(config, deps, access, records, (inference, plain_inference), telemetry)
    features = open_features(stack)
    for name in {name for feature in features for name in feature.replaces}:
        leave_out(name)
    authenticate = next((each.authenticate for each in features if each.authenticate), None)
    check_running_auth(has_keys=authenticate is not None)
    if authenticate:
        limit_models(deps[Api.inference].routing_table)
    dependencies = Dependencies(
        inference,
        _attachments(stack, deps),
        HostPrompts(deps[Api.prompts]) if config.stored_prompts and Api.prompts in deps else None,
        _tool_services(stack, deps, features),
        next((each.moderation for each in features if each.moderation), NoModeration()),
        telemetry,
        stack.pool,
        [*features, *([refresh] if refresh else [])],
        [feature.fill for feature in features if feature.fill],
        any(each.keeps_chat_requests for each in features),
        [card for each in features for card in each.cards],
        [view for each in features for view in each.views],
        [each.at_end for each in features if each.at_end],
        [each.on_end for each in features if each.on_end],
        [each.on_refused for each in features if each.on_refused],
        next((each.admit for each in features if each.admit), None),
        next((each.admit_items for each in features if each.admit_items), None),
        stack.activity,
    )
    provided = ResponsesProvider(config, records, stack.sealer, dependencies, access, features, authenticate)
    _connect(provided, features, plain_inference)
    provided.appear_in(deps.get(Api.providers))
    await provided.prepare()
    return provided


def _records(config: ResponsesConfig, access: HostAccess, telemetry: Telemetry) -> Records:
    measured = MeasuredRecords(open_records(config.store, backend, access.current_user), telemetry)
    return with_tiers(measured, config, telemetry)


def _connect(impl: OpenAIResponsesImpl, features: Sequence[Feature], plain_inference: HostPlainInference) -> None:
    """Give features the implementation, and limit what asks models and is no response."""
    for feature in features:
        feature.connect(impl)
    plain_inference.limit(impl.limited)
    limit_inference_routes(impl.limited)


def _attachments(stack: Stack, deps: dict[Api, Any]) -> Attachments:
    processor = file_processor(deps.get(Api.file_processors))
    return open_attachments(stack.files, stack.config, stack.pool, stack.contents, stack.address_policy, processor)


async def _stack(
    config: ResponsesConfig,
    deps: dict[Api, Any],
    access: HostAccess,
    records: Records,
    inferences: tuple[HostInference, HostPlainInference],
    telemetry: Telemetry,
) -> Stack:
    inference, plain_inference = inferences
    files: Files = HostFiles(deps[Api.files]) if Api.files in deps else NoFiles()
    if vector_stores := deps.get(Api.vector_io):
        take_default_embedding_model(vector_stores)
    return Stack(
        config,
        access.current_user,
        records,
        files,
        Admission(config.files.content_quota),
        _address_policy(config.fetch),
        WorkerPool(config.files.pool_limits),
        await _tool_runtime(deps.get(Api.tool_runtime), access),
        inference,
        inference.models,
        telemetry,
        Activity(),
        Sealer(config.secret_bytes, secret_keeper(config.store, records)),
        plain_inference,
        ObjectEvents(),
        Operators(config.roles, access.current_user, AuditLog(records, config.roles.audit_seconds)),
        _safety(config, deps.get(SAFETY)),
        vector_stores_of(vector_stores),
        HostLargeFiles(deps[Api.files]) if Api.files in deps else None,
    )


def _tool_services(stack: Stack, deps: dict[Api, Any], features: Sequence[Feature]) -> HostedToolServices:
    return HostedToolServices(
        mcp=_mcp_servers(stack, deps.get(Api.connectors)),
        of_features={kind: tool for feature in features for kind, tool in feature.tools.items()},
    )


def open_features(stack: Stack) -> list[Feature]:
    """Return what the features of this installation bring to a stack."""
    return [module.open_feature(stack) for module in modules_of_features("feature").values()]


async def _prepare_host(config: ResponsesConfig) -> None:
    if isinstance(config.store, HostStore):
        # Connecting now stops the start if the stack has no such backend.
        try:
            await backend(config.store.backend)()
        except ValueError as error:
            raise WrongConfiguration(f"'store.backend' cannot be used: {error}") from error
    skip_disabled_levels()
    plain_lines()
    bound_tracebacks()
    # Without a category, the host would show only warnings of these loggers.
    for name in (ENDED, DELETED):
        set_log_category(name, category="openai_responses")
    # This package serves the conversations that its responses continue, which every stack includes.
    leave_out("conversations")


async def _tool_runtime(router: Any, access: HostAccess) -> ToolRuntime:
    if router is None:
        return NoToolRuntime()
    await forget_tool_groups_without_provider(router)
    return HostToolRuntime(router, access.requester_key)


def _inference(config: ResponsesConfig, router: Any, refresh: ModelRefresh | None) -> HostInference:
    stored, shortcuts = config.store_chat_completions, config.host_shortcuts
    again = refresh.refresh if refresh else None
    return HostInference(router, store_chat_completions=stored, shortcuts=shortcuts, refresh=again)


def _model_refresh(router: Any) -> ModelRefresh | None:
    table = getattr(router, "routing_table", None)
    return ModelRefresh(table) if table else None


def _safety(config: ResponsesConfig, router: Any | None) -> HostSafety | None:
    return HostSafety(router, store_chat_completions=config.store_chat_completions) if router else None


def vector_stores_of(router: Any | None) -> HostVectorStores | None:
    """Return the host's vector stores; None if the stack has no provider for them, even if it has the API."""
    return HostVectorStores(router) if router and router.routing_table.impls_by_provider_id else None


def _address_policy(fetching: Fetching) -> AddressPolicy:
    limits = LookupLimits(fetching.lookups, fetching.lookups_per_user, fetching.lookup_seconds)
    return AddressPolicy(fetching.allowed_networks, fetching.nat64_prefixes, resolve=Resolver(limits).resolve)


def _mcp_servers(stack: Stack, connectors: Any | None) -> McpOnDemand:
    mcp = stack.config.mcp
    return McpOnDemand(partial(_mcp_client, stack, connectors), mcp.repeatable, mcp.require_approval)


def _mcp_client(stack: Stack, connectors: Any | None) -> McpSessionFactory:
    from ..tools.mcp.incoming_messages import IncomingLimits
    from ..tools.mcp.sessions import McpClient, SessionLimits

    mcp = stack.config.mcp
    incoming = IncomingLimits(mcp.answer_bytes, mcp.answer_values, mcp.session_bytes)
    limits = SessionLimits(mcp.connect_seconds, incoming)
    return McpClient(
        stack.address_policy,
        HostConnectors(connectors),
        limits,
        stack.reserve,
        mcp.repeatable,
        mcp.require_approval,
    )
