"""The integration with the host, llama-stack or its successor OGX. Only this folder imports the host."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from ..admission import Admission, Reservation
from ..chat.profile import profile_for
from ..config import ResponsesConfig
from ..config.services import Fetching
from ..config.stores import HostStore
from ..core.owner import Owner
from ..core.unavailable_tools import Unavailable
from ..fetch.address_policy import AddressPolicy
from ..fetch.fetcher import Fetcher, FetchLimits
from ..fetch.pages import WebPages
from ..fetch.resolver import LookupLimits, Resolver
from ..generation.dependencies import Dependencies
from ..image_server.client import ImageServer, ImageServerLimits
from ..inputs.attachments import open_attachments
from ..inputs.files import Files, NoFiles, uploaded_with
from ..inputs.image_reader import ImageReader
from ..inputs.skills import SkillReader
from ..logs import ENDED, bound_tracebacks, get_logger, plain_lines
from ..moderation.endpoint import Endpoint
from ..moderation.moderator import Moderator, NoModerator
from ..process_pool.pool import WorkerPool
from ..programs.runtime import ProgramRuntime
from ..sandbox.factory import open_containers
from ..store.factory import open_records, secret_keeper
from ..store.instrumented import MeasuredRecords
from ..store.skill_store import SkillStore
from ..telemetry.telemetry import Telemetry
from ..tools.hosted.image_generation import ImageServices, ImageSupport
from ..tools.hosted.runtime import NoToolRuntime, ToolRuntime
from ..tools.mcp.incoming_messages import IncomingLimits
from ..tools.mcp.sessions import McpClient, SessionLimits
from ..tools.registry import HostedToolServices
from .connectors import HostConnectors
from .disabled_levels import skip_disabled_levels
from .file_processors import file_processor
from .files import HostFiles
from .identity import HostAccess
from .inference import HostInference
from .keyvalue import backend
from .platform import SAFETY, AccessRule, Api, set_log_category
from .prompts import HostPrompts
from .registry import forget_tool_groups_without_provider
from .responses_provider import ResponsesProvider
from .routes import leave_out_conversations
from .safety import HostSafety
from .tool_runtime import HostToolRuntime
from .vector_stores import HostVectorStores

__all__ = ["get_provider_impl"]

logger = get_logger(__name__)


async def get_provider_impl(
    config: ResponsesConfig, deps: dict[Api, Any], policy: list[AccessRule]
) -> ResponsesProvider:
    """Build the provider, and inject every object that outlives a request.

    The host calls this in an event loop that does not serve requests, so no object created here may be bound to a loop.
    """
    if isinstance(config.store, HostStore):
        # Connecting now stops the start if the stack has no such backend.
        await backend(config.store.backend)()
    _prepare_host()
    files: Files = HostFiles(deps[Api.files]) if Api.files in deps else NoFiles()
    access = HostAccess(policy)
    pool, address_policy = WorkerPool(config.files.pool_limits), _address_policy(config.fetch, access.current_user)
    contents, telemetry = Admission(config.files.content_quota), Telemetry()
    records = MeasuredRecords(open_records(config.store, backend, access.current_user), telemetry)
    skills = SkillReader(contents, access.current_user, SkillStore(records))
    services = HostedToolServices(
        current_user=access.current_user,
        uploaded=uploaded_with(files, contents, access.current_user),
        find_skill=skills.find,
        runtime=await _tool_runtime(deps.get(Api.tool_runtime), access),
        pages=_pages(config.fetch, address_policy, pool, contents),
        browses=lambda model: profile_for(model, config.profiles).web_search == "browser",
        vector_stores=HostVectorStores(deps[Api.vector_io]) if Api.vector_io in deps else None,
        containers=open_containers(config.code_interpreter) if config.code_interpreter else None,
        images=_images(config, files, address_policy, contents, access.current_user),
        mcp=_mcp_servers(config, address_policy, deps.get(Api.connectors), contents, access.current_user),
        programs=_programs(pool),
        unavailable=Unavailable(config.unavailable_tools),
    )
    dependencies = Dependencies(
        _inference(config, deps[Api.inference]),
        open_attachments(files, config, pool, contents, address_policy, file_processor(deps.get(Api.file_processors))),
        HostPrompts(deps[Api.prompts]) if config.stored_prompts and Api.prompts in deps else None,
        services,
        _moderator(config, deps.get(SAFETY)),
        telemetry,
        pool,
        skills,
    )
    provided = ResponsesProvider(config, records, secret_keeper(config.store, records), dependencies, access)
    provided.appear_in(deps.get(Api.providers))
    return provided


def _programs(pool: WorkerPool) -> ProgramRuntime | None:
    runtime = ProgramRuntime(pool)
    if runtime.unavailable is None:
        return runtime
    logger.info("programs that call tools are not available: %s", runtime.unavailable)
    return None


def _prepare_host() -> None:
    skip_disabled_levels()
    plain_lines()
    bound_tracebacks()
    # Without a category, the host would show only warnings of this logger.
    set_log_category(ENDED, category="openai_responses")
    leave_out_conversations()


async def _tool_runtime(router: Any, access: HostAccess) -> ToolRuntime:
    if router is None:
        return NoToolRuntime()
    await forget_tool_groups_without_provider(router)
    return HostToolRuntime(router, access.requester_key)


def _inference(config: ResponsesConfig, router: Any) -> HostInference:
    stored, shortcuts = config.store_chat_completions, config.host_shortcuts
    return HostInference(router, store_chat_completions=stored, shortcuts=shortcuts)


def _moderator(config: ResponsesConfig, safety: Any | None) -> Moderator:
    """Return the configured moderation server, or else the stack's safety provider."""
    moderation = config.moderation
    if moderation.url:
        key = moderation.api_key.get_secret_value() if moderation.api_key else None
        return Endpoint(moderation.url, key, moderation.model, seconds=moderation.seconds)
    return HostSafety(safety, store_chat_completions=config.store_chat_completions) if safety else NoModerator()


def _address_policy(fetching: Fetching, current_user: Callable[[], Owner]) -> AddressPolicy:
    limits = LookupLimits(fetching.lookups, fetching.lookups_per_user, fetching.lookup_seconds)
    return AddressPolicy(
        fetching.allowed_networks, fetching.nat64_prefixes, resolve=Resolver(limits, current_user).resolve
    )


def _pages(fetching: Fetching, address_policy: AddressPolicy, pool: WorkerPool, contents: Admission) -> WebPages | None:
    if find_spec("trafilatura") is None:
        return None
    limits = FetchLimits(fetching.max_bytes, fetching.seconds, fetching.redirects)
    return WebPages(Fetcher(address_policy, limits), pool, fetching.seconds, contents)


def _images(
    config: ResponsesConfig,
    files: Files,
    address_policy: AddressPolicy,
    contents: Admission,
    current_user: Callable[[], Owner],
) -> ImageServices | None:
    if (settings := config.image_generation) is None:
        return None
    key = settings.api_key.get_secret_value() if settings.api_key else None
    limits = ImageServerLimits(
        seconds=settings.seconds,
        image_bytes=settings.image_bytes,
        concurrency=settings.concurrency,
        concurrency_per_user=settings.concurrency_per_user,
        waiting_per_user=settings.waiting_per_user,
    )
    support = ImageSupport(
        model=settings.model,
        models=settings.models,
        options=settings.options,
        edits=settings.edits,
        model_sees_images=settings.model_sees_images,
    )
    fetcher = Fetcher(address_policy, FetchLimits(settings.image_bytes, config.fetch.seconds, config.fetch.redirects))
    return ImageServices(
        ImageServer(settings.url, key, settings.response_format, limits),
        support,
        ImageReader(files, fetcher, settings.image_bytes).read,
        lambda: contents.reserve(current_user()),
        current_user,
    )


def _mcp_servers(
    config: ResponsesConfig,
    address_policy: AddressPolicy,
    connectors: Any | None,
    contents: Admission,
    current_user: Callable[[], Owner],
) -> McpClient:
    mcp = config.mcp
    incoming = IncomingLimits(mcp.answer_bytes, mcp.answer_values, mcp.session_bytes)
    limits = SessionLimits(mcp.connect_seconds, incoming)

    def reserve() -> Reservation:
        return contents.reserve(current_user())

    return McpClient(address_policy, HostConnectors(connectors), limits, reserve, mcp.repeatable, mcp.require_approval)
