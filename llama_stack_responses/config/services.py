"""Settings of the services that responses use: fetching, files and MCP servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)

from ..admission import Quota
from ..core.setting_values import listed
from ..items.mcp_approvals import Approval
from ..process_pool.pool import PoolLimits
from .wrong_values import near

_MIN_HELD_BYTES = 16 * 2**20
_NAT64_LENGTHS = (32, 40, 48, 56, 64, 96)


type _Network = IPv4Network | IPv6Network

_LOOPBACK: Final = "loopback"
_LOOPBACK_NETWORKS: Final = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))


def _networks_of(given: Any) -> Sequence[_Network]:
    """Return the networks of one entry."""
    if given == _LOOPBACK:
        return _LOOPBACK_NETWORKS
    try:
        return [ip_network(str(given))]
    except ValueError:
        advice = f"this is not a network such as 10.1.0.0/16, nor '{_LOOPBACK}', which is this machine"
    try:
        meant = str(ip_network(str(given), strict=False))  # its address has bits beyond its length
    except ValueError:
        meant = near(str(given), [_LOOPBACK])
    raise ValueError(f"{advice}; did you mean '{meant}'?" if meant else advice)


def _joined(entries: Iterable[Iterable[_Network]]) -> list[_Network]:
    return [network for entry in entries for network in entry]


def _nat64_prefix(given: Any) -> IPv6Network:
    try:
        prefix = IPv6Network(given)
    except ValueError:
        raise ValueError("this is not an IPv6 network such as 2001:db8:64::/96") from None
    if prefix.prefixlen not in _NAT64_LENGTHS:
        lengths = ", ".join(f"/{each}" for each in _NAT64_LENGTHS)
        raise ValueError(f"the length of a NAT64 prefix is one of {lengths} (RFC 6052)")
    return prefix


class Fetching(BaseModel):
    """How this server fetches the URLs that users and models name.

    Attributes:
        allowed_networks: networks that may be reached although they are not public, such as `10.1.0.0/16`, or
            `loopback`: a list, or a text with commas between them. All public addresses are allowed.
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

    allowed_networks: Annotated[
        list[Annotated[_Network, PlainValidator(_networks_of)]], BeforeValidator(listed), AfterValidator(_joined)
    ] = Field(default_factory=list)
    nat64_prefixes: list[Annotated[IPv6Network, PlainValidator(_nat64_prefix)]] = Field(default_factory=list)
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
        total_bytes: maximum bytes that all requests hold together: files, images, pages and answers of MCP servers
            being read, the content as a model gets it, and what models and tools have put out, until their response
            ends; null is 12 times `max_bytes`, and `bytes_per_user` at least.
        bytes_per_user: maximum bytes that the requests of one user hold; null is 4 times `max_bytes`, and 16 MiB at
            least.
        memory_mb: maximum memory for reading one file, if this server reads it itself.
        concurrency: maximum number of files that a server process reads at the same time.
        concurrency_per_user: maximum number of these that belong to one authenticated user. A stack without
            authentication has one user, who may use all.
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
    concurrency: int = Field(default=4, ge=1)
    concurrency_per_user: int = Field(default=2, ge=1)
    waiting_per_user: int = Field(default=256, ge=0)

    @property
    def content_quota(self) -> Quota:
        """The quota of contents of files and pages, and of outputs of running responses, that are held."""
        per_user = self.bytes_per_user or max(4 * self.max_bytes, _MIN_HELD_BYTES)
        return Quota(
            "files, pages and running outputs", self.total_bytes or max(12 * self.max_bytes, per_user), per_user
        )

    @model_validator(mode="after")
    def _admits_the_largest_request(self) -> FileInputs:
        # A file is held together with its base64 for the model.
        quota = self.content_quota
        if min(quota.total, quota.per_user) < 3 * self.max_bytes:
            raise ValueError("'total_bytes' and 'bytes_per_user' must be at least three times 'max_bytes'")
        return self

    @property
    def pool_limits(self) -> PoolLimits:
        """The limits of the worker processes."""
        return PoolLimits(
            concurrency=self.concurrency,
            concurrency_per_user=self.concurrency_per_user,
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
