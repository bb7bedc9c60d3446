"""The settings of the provider: a class for each part of the configuration."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    model_validator,
)

from ..chat.profile import Profile
from ..concurrency.share import Share
from ..core import shapes
from ..core.discovery import feature_names
from ..core.feature_settings import with_features
from ..core.input_policy import InputPolicy
from ..core.owner import Owner
from ..core.setting_values import listed
from ..items.registry import HOSTED_TOOL_NAMES
from ..requests.request import DEFAULT_PASSTHROUGH
from ..requests.unavailable_tools import Policy
from ..sealing.sealer import SECRET_BYTES
from .limits import BackgroundWork, Limits, ModelServerLimits
from .roles import Roles
from .services import Fetching, FileInputs, McpServers
from .stores import SqliteStore, Store
from .teams import Team
from .unknown_settings import explained
from .web_pages import HostNames, Origins
from .wrong_values import other_word

_DAY_SECONDS = 86_400.0
_BUILTIN_SETTINGS = frozenset({"persistence", "memory_config", "compaction_config", "vector_stores_config"})
_BUILTIN = "a setting of the host's own provider, take it out; 'store' says where responses are kept"
"""If such a setting were ignored, responses would not be stored where it says."""


def _given(secrets: Any) -> Any:
    """Return the entries without the nulls that the host substitutes for environment variables that are not set."""
    return [secret for secret in secrets if secret is not None] if isinstance(secrets, list) else secrets


def _secret(secret: SecretStr) -> SecretStr:
    try:
        size = len(b64decode(secret.get_secret_value(), validate=True))
    except ValueError:
        size = 0
    if size != SECRET_BYTES:
        raise ValueError(f"a secret is {SECRET_BYTES} bytes in base64: `openssl rand -base64 {SECRET_BYTES}` makes one")
    return secret


def _file_or_server(place: str) -> str:
    host, _, port = place.rpartition(":")
    if not place.startswith("/") and not (host and port.isdecimal() and int(port) <= 65535):
        raise ValueError("it is the absolute path of a file, or HOST:PORT of a server with TLS")
    return place


def _hosted_tool(name: str) -> str:
    known = sorted(set(HOSTED_TOOL_NAMES.values()))
    if name not in known:
        raise ValueError(other_word(name, known))
    return name


def _off_or_long(seconds: float) -> float:
    if seconds != 0 and not 0.01 <= seconds <= 60:
        raise ValueError("it is 0, which turns it off, or 0.01 to 60 seconds")
    return seconds


@with_features
class ResponsesConfig(BaseModel):
    """Configuration of the provider `inline::kv`. Features add their settings (`core/feature_settings.py`).

    Attributes:
        store: where responses are stored.
        retention_days: days for which a response is kept; null keeps it forever.
        conversation_retention_days: days for which a conversation is kept after its last change; null keeps it until
            it is deleted.
        sweep_seconds: interval between two deletions of expired responses and conversations.
        max_swept_share: a deletion of expired responses that goes more than a day further than the last one waits for
            a person if it would delete more than this share of all. 1 never waits.
        finish_seconds: time for which a server that shuts down lets its foreground responses go on; then it fails them.
        leave_seconds: time for which a server that shuts down still accepts connections, before `finish_seconds`, so
            that load balancers which ask for its readiness send it nothing more.
        ready_providers: which inference providers `/v1/ready` requires: `any` or `all` of those that report their
            health, or a list of their ids.
        watched_certificates: certificates of which logs and a metric say when they end, in addition to those of the
            store: absolute paths of PEM files, and `HOST:PORT` of servers with TLS.
        certificate_warning_days: days before its end from which on a certificate is logged, once a day.
        log_owner: whether log lines and spans of a response have its owner: not (`off`), as the hash that keys of the
            store have (`hashed`), or by name (`named`).
        flush_seconds: time for which a server that shuts down waits for clients to read the data sent to them.
        stream_refusal_seconds: time for which a stream waits for the model server's refusal before its headers are
            sent.
        loop_hold_seconds: a log line and a metric report any piece of work that blocks the event loop for longer than
            this; 0 turns that off.
        host_shortcuts: whether this provider may shorten the host's work on each request, and have Python look for
            garbage less often.
        auth_cache_seconds: time for which the host's auth is not asked again for a token that it has accepted, so also
            until a revoked token is refused; 0 asks for each request.
        store_chat_completions: whether the host may also write every model round, with its whole message list, and
            every chat line of a batch to its own inference store: quadratic in a conversation's length, and not bound
            by `store: false`.
        profiles: settings for single models; the first whose `match` fits the model's name applies.
        profiles_file: a YAML file with profiles of model servers, in addition to those of this package.
        stored_prompts: whether requests may name prompts of the stack. llama-stack keeps no owner of a prompt, so all
            of its users can read all prompts; OGX does.
        passthrough: request fields that OpenAI does not have and that are forwarded to the provider unchanged.
        unknown_fields: whether other request fields that OpenAI does not have, and unknown names inside of fields, are
            refused, as at OpenAI, or ignored.
        secrets: keys that seal stored user data, such as the users' own API keys: each 32 bytes in base64. The first
            one seals, all of them open.
        roles: which users are operators, or lead a team; none by default.
        teams: settings of teams, by name.
        model_servers: limits of model servers, by the ids of their inference providers. They hold for responses and
            compactions; the host's own routes, such as `/v1/chat/completions`, pass them by.
        background: limits of background responses.
        fetch: how URLs are fetched.
        files: limits of files and images.
        mcp: how MCP servers are used.
        allowed_hosts: without authentication, host names under which the server is reached, beside IP addresses, the
            machine's own name and those that the public DNS does not have; `*.NAME` stands for all below one, `*` for
            all.
        allowed_origins: origins of other sites, such as `https://app.example.com`, whose web pages may use the server,
            beside those that the host's CORS settings allow.
        limits: limits of requests.
        unavailable_tools: whether a request for a tool that this stack cannot run is refused (`refuse`), or accepted
            without the tool (`omit`); for all tools, or by their types: `{web_search: omit}`.
        unreadable_reasoning: whether a reasoning item with `encrypted_content` that this server cannot open is refused
            (`refuse`), or its sealed part is left out with a warning (`drop`).
        unanswered_calls: whether a client-run call without an output, after which the user goes on, is filled in for
            the model (`fill`), or refused (`refuse`).
        missing_call_ids: whether an output without a `call_id` is refused (`refuse`), or belongs to the oldest open
            call of its kind (`match`).
    """

    # A refused value may contain a password. Its checks are built when it is first used, with the features' settings.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, defer_build=True)

    store: Store = Field(default_factory=SqliteStore)
    retention_days: float | None = Field(default=30.0, gt=0)
    conversation_retention_days: float | None = Field(default=None, gt=0)
    sweep_seconds: float = Field(default=600.0, gt=0)
    max_swept_share: float = Field(default=0.2, gt=0, le=1)
    finish_seconds: float = Field(default=0.0, ge=0)
    leave_seconds: float = Field(default=0.0, ge=0)
    ready_providers: Literal["any", "all"] | list[str] = "any"
    watched_certificates: Annotated[list[Annotated[str, AfterValidator(_file_or_server)]], BeforeValidator(listed)] = (
        Field(default_factory=list)
    )
    certificate_warning_days: float = Field(default=21.0, gt=0)
    log_owner: Literal["off", "hashed", "named"] = "off"
    flush_seconds: float = Field(default=5.0, gt=0)
    stream_refusal_seconds: float = Field(default=2.0, ge=0)
    loop_hold_seconds: Annotated[float, AfterValidator(_off_or_long)] = 0.1
    host_shortcuts: bool = True
    auth_cache_seconds: float = Field(default=30.0, ge=0, le=3600)
    store_chat_completions: bool = False
    profiles_file: Path | None = None
    stored_prompts: bool = True
    profiles: list[Profile] = Field(default_factory=list)
    passthrough: frozenset[str] = DEFAULT_PASSTHROUGH
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    secrets: Annotated[list[Annotated[SecretStr, AfterValidator(_secret)]], BeforeValidator(_given)] = Field(
        default_factory=list
    )
    roles: Roles = Field(default_factory=Roles)
    teams: dict[str, Team] = Field(default_factory=dict)
    model_servers: dict[str, ModelServerLimits] = Field(default_factory=dict)
    background: BackgroundWork = Field(default_factory=BackgroundWork)
    fetch: Fetching = Field(default_factory=Fetching)
    files: FileInputs = Field(default_factory=FileInputs)
    mcp: McpServers = Field(default_factory=McpServers)
    allowed_hosts: HostNames = frozenset()
    allowed_origins: Origins = frozenset()
    limits: Limits = Field(default_factory=Limits)
    unavailable_tools: Policy | dict[Annotated[str, AfterValidator(_hosted_tool)], Policy] = "refuse"
    unreadable_reasoning: Literal["refuse", "drop"] = "refuse"
    unanswered_calls: Literal["fill", "refuse"] = "fill"
    missing_call_ids: Literal["refuse", "match"] = "refuse"

    @model_validator(mode="wrap")
    @classmethod
    def _explain_unknown_settings(cls, settings: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(settings)
        except ValidationError as error:
            features = f"the features of this installation are {', '.join(feature_names()) or 'none'}"
            raise explained(cls, error, dict.fromkeys(_BUILTIN_SETTINGS, _BUILTIN), features) from None

    @property
    def request_limits(self) -> shapes.RequestLimits:
        """The limits that apply while a request is parsed."""
        return replace(self.limits.request_limits, call_ids_required=self.missing_call_ids == "refuse")

    @property
    def input_policy(self) -> InputPolicy:
        """What happens to input of which a part is lost."""
        return InputPolicy(self.unreadable_reasoning == "drop", self.unanswered_calls == "fill")

    def share_of(self, user: Owner) -> Share:
        """Return the share of a user in what all users wait for, by their team."""
        team = self.teams.get(user.team) if self.teams else None
        return Share(user.identity, team.weight) if team else Share(user.identity)

    @property
    def retention_seconds(self) -> float | None:
        """The retention in seconds, or None to keep responses forever."""
        return None if self.retention_days is None else self.retention_days * _DAY_SECONDS

    @property
    def conversation_retention_seconds(self) -> float | None:
        """The retention of conversations in seconds, or None to keep them until they are deleted."""
        days = self.conversation_retention_days
        return None if days is None else days * _DAY_SECONDS

    @property
    def secret_bytes(self) -> list[bytes]:
        """The decoded secrets."""
        return [b64decode(secret.get_secret_value()) for secret in self.secrets]
