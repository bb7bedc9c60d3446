"""The networks of containers, as the server sees them: what is accepted, and the process of each container's proxy."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import httpx

from ....concurrency.child_process import ChildProcess
from ....concurrency.offloading import in_thread
from ....logs import get_logger
from ..sandbox.jail import JailNetwork
from ..settings import ContainerNetwork
from .certificates import HostCertificates, certificates_for
from .policy import NetworkPolicy, NetworkRules
from .proxy_settings import ProxySettings, shared_count
from .secrets import Redaction

logger = get_logger(__name__)

_PORT: Final = 3128
_PROXY: Final = f"http://127.0.0.1:{_PORT}"
_AUTHORITIES: Final = "/etc/ssl/certs/ca-certificates.crt"
_LOOPBACK: Final = ("127.0.0.1", "localhost")
_HOSTS: Final = "127.0.0.1 localhost container\n"
"""The names of the container itself, as /etc/hosts has them."""

_VARIABLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), _PROXY),
    **dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"), _AUTHORITIES),
    **dict.fromkeys(("PIP_CERT", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE"), _AUTHORITIES),
    "NODE_USE_ENV_PROXY": "1",
}
"""By which programs find the proxy, and the authorities that they trust."""

_PASSED: Final = ("PATH", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables of the server that the proxy gets: no keys."""

_LOGGED: Final = 100
"""Maximum number of refused requests that are logged of one container."""

_SHOWN: Final = 5
"""Maximum number of different reasons of refused requests in the output of a call."""

_REPORTS_BYTES: Final = 2**16
_READ_BYTES: Final = 2**14
"""The size of the pipe of reports, and of one read of it."""

_RESTARTS: Final = 3
"""Maximum number of restarts of a proxy within a call."""

type _Settings = Callable[[NetworkPolicy, HostCertificates], ProxySettings]


class Networks:
    """The networks that the containers of this server may have.

    Args:
        settings: what the operator allows.
        networks: networks that may be reached although they are not public.
        nat64: prefixes of NAT64.
        variables: the environment variables of a container without a network.
    """

    def __init__(
        self, settings: ContainerNetwork, networks: Sequence[str], nat64: Sequence[str], variables: Collection[str]
    ) -> None:
        self.accept = NetworkRules(settings, {*variables, *_VARIABLES, *_without_proxy(())}).accept
        self._settings, self._networks, self._nat64 = settings, networks, nat64
        self._trust = ""

    def open(self, policy: NetworkPolicy | None, container_id: str) -> Network | None:
        """Return the network of a new container; None without a policy."""
        return None if policy is None else Network(policy, self._proxy_settings, container_id)

    def _proxy_settings(self, policy: NetworkPolicy, certificates: HostCertificates) -> ProxySettings:
        self._trust = self._trust or _trusted()  # once, as other fetches do: it takes tens of milliseconds
        settings, secrets = self._settings, dict[str, dict[str, str]]()
        for each in policy.secrets:
            secrets.setdefault(each.host, {})[each.name] = each.value
        return ProxySettings(
            hosts=sorted(policy.hosts),
            ports=settings.ports,
            secrets=secrets,
            certificates=certificates.of_hosts,
            trust=self._trust,
            networks=self._networks,
            nat64=self._nat64,
            connections=settings.connections,
            traffic_bytes=settings.traffic_mb * 2**20,
            idle_seconds=settings.idle_seconds,
            seconds=settings.seconds,
        )


class Network:
    """The network of one container. Its proxy runs as long as the processes in the container.

    Args:
        policy: what it reaches.
        settings: returns the settings of the proxy, given the certificates of hosts; blocks.
        container_id: the container's id, for the log.
    """

    def __init__(self, policy: NetworkPolicy, settings: _Settings, container_id: str) -> None:
        self.policy = policy
        self._make_settings = settings
        self._container_id = container_id
        self._settings: ProxySettings | None = None
        self._authorities = ""
        self._redaction: Redaction | None = None
        self._listener: socket.socket | None = None
        self._group: Path | None = None
        self._proxy: _ProxyProcess | None = None
        self._left: int | None = None  # the traffic that earlier processes have left
        self._restarts = self._logged = 0
        self._reasons: dict[str, None] = {}  # why requests of the current call were refused

    async def prepare(self) -> JailNetwork:
        """Return what the jail needs. The caller closes the descriptors."""
        if self._settings is None:
            await in_thread(self._make)
        files = {_AUTHORITIES: _in_memory(self._authorities), "/etc/hosts": _in_memory(_HOSTS)}
        secrets = {name: f"${name}" for name in self.policy.names_of_secrets()}
        return JailNetwork(_PORT, files, {**_VARIABLES, **_without_proxy(self.policy.hosts), **secrets})

    def begin(self, group: Path | None, listener: socket.socket) -> None:
        """Start the proxy for the processes in the container.

        Args:
            group: the folder of the container's control group, if it has one.
            listener: the socket in the container that they connect to; closed by `end`.
        """
        self._listener, self._group = listener, group
        self.begin_call()

    def begin_call(self) -> None:
        """Have a running proxy for a call of the code, and forget what earlier ones were refused."""
        self._restarts = 0
        self._running().read_all()
        self._reasons.clear()

    async def end(self) -> None:
        """End the proxy."""
        proxy, self._proxy = self._proxy, None
        listener, self._listener = self._listener, None
        if listener:
            listener.close()
        if proxy:
            await proxy.process.end()
            self._left = proxy.close()

    async def shown(self, *outputs: str) -> list[str]:
        """Return the outputs of a call with placeholders in place of secrets, of which there are none before `prepare`.

        To the last one, it adds why requests were refused: curl and git, for example, show only the status of the
        refusal of a tunnel.
        """
        if self._proxy:
            self._proxy.read()
        if self._redaction:
            *others, last = await in_thread(lambda redact: list(map(redact, outputs)), self._redaction.of)
        else:
            *others, last = outputs
        missing = [each for each in self._reasons if each not in last]
        begun = "\n" if last and missing and not last.endswith("\n") else ""
        return [*others, last + begun + "".join(f"[network] {each}\n" for each in missing)]

    def _running(self) -> _ProxyProcess:
        """Return the proxy; start it if there is none, or if the system has killed it."""
        assert self._listener, "it has begun"
        assert self._settings, "it is prepared"
        if self._proxy is None or self._proxy.process.returncode is not None:
            if self._proxy:
                self._left = self._proxy.close()
            left = self._settings.traffic_bytes if self._left is None else self._left
            self._proxy = _ProxyProcess(self._listener, self._settings, left, self._group, self._note, self._ended)
        return self._proxy

    def _note(self, host: str, status: int, reason: str) -> bool:
        """Note a refused request, and log it up to a number. Return whether more may be logged."""
        if len(self._reasons) < _SHOWN:
            self._reasons[reason] = None
        if self._logged < _LOGGED:
            self._logged += 1
            name = host or "an address that is no host of the policy"
            logger.info("a request of container %s to %s ended with %d", self._container_id, name, status)
        return self._logged < _LOGGED

    def _ended(self) -> None:
        """Start a proxy again that has ended by itself, a few times in each call."""
        if self._listener:
            logger.warning("the proxy of a container has ended: %s", self._container_id)
            if self._restarts < _RESTARTS:
                self._restarts += 1
                self._running()

    def _make(self) -> None:
        """Create the certificates, and find the forms of the secrets. Blocks."""
        self._redaction = Redaction({secret.value: f"${secret.name}" for secret in self.policy.secrets})
        certificates = certificates_for({secret.host for secret in self.policy.secrets})
        settings = self._make_settings(self.policy, certificates)
        self._authorities = settings.trust + certificates.authority
        self._settings = settings  # at last: `prepare` uses all of it, also if one that was cancelled runs on


class _ProxyProcess:
    """A running proxy. It ends with this process at the latest.

    Args:
        listener: the socket that it accepts connections of.
        traffic: how many bytes the container may still send and receive.
        group: the folder of the control group that it joins, if there is one.
        note: called with the host, the status and the reason of each refused request. Once it returns false, reports
            are read only when they are asked for.
        ended: called when the process has ended, before `close`.
    """

    def __init__(
        self,
        listener: socket.socket,
        settings: ProxySettings,
        traffic: int,
        group: Path | None,
        note: Callable[[str, int, str], bool],
        ended: Callable[[], None],
    ) -> None:
        self._note, self._ended, self._rest = note, ended, b""
        ending, self._running = os.pipe()
        self._reports, reports = os.pipe()
        passed = _in_memory(json.dumps(asdict(settings)))
        left = os.memfd_create("left")
        os.truncate(left, 8)
        self._left = shared_count(left)
        self._left[0] = traffic
        descriptors = (listener.fileno(), passed, left)
        arguments = (str(group or ""), *map(str, descriptors))
        try:
            self.process = ChildProcess(
                [sys.executable, "-P", "-m", f"{__package__}.proxy", *arguments],
                stdin=ending,
                stdout=reports,
                pass_fds=descriptors,
                env={name: os.environ[name] for name in _PASSED if name in os.environ},
            )
        except BaseException:
            os.close(self._running)
            os.close(self._reports)
            raise
        finally:
            for descriptor in (ending, reports, passed, left):
                os.close(descriptor)
        os.set_blocking(self._reports, False)
        self._end = os.pidfd_open(self.process.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._reports, self.read)
        loop.add_reader(self._end, self._has_ended)

    def close(self) -> int:
        """Close the pipes of the ended process, and return how many bytes the container may still send and receive."""
        self.read()
        loop = asyncio.get_running_loop()
        for descriptor in (self._reports, self._end):
            loop.remove_reader(descriptor)
            os.close(descriptor)
        os.close(self._running)
        return self._left[0]

    def read_all(self) -> None:
        """Read all reports."""
        for _ in range(_REPORTS_BYTES // _READ_BYTES):
            self.read()

    def read(self) -> None:
        """Read some reports."""
        goes_on = True
        with suppress(BlockingIOError):
            data = os.read(self._reports, _READ_BYTES)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                goes_on = self._note(*json.loads(line))
            if not (data and goes_on):
                asyncio.get_running_loop().remove_reader(self._reports)

    def _has_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._end)
        self._ended()


def _without_proxy(hosts: Collection[str]) -> dict[str, str]:
    """Return the variables that name what programs reach without the proxy: the container itself.

    Programs take a name there for all below it too, so `localhost` is not among them if a host of the policy is below.
    """
    own = [each for each in _LOOPBACK if not any(f".{host}".endswith(f".{each}") for host in hosts)]
    return dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(own))


def _trusted() -> str:
    """Return the authorities that this server trusts, as other fetches do, in PEM."""
    found: list[Any] = httpx.create_ssl_context().get_ca_certs(binary_form=True)
    return "".join(map(ssl.DER_cert_to_PEM_cert, found))


def _in_memory(text: str) -> int:
    """Return a descriptor of a file in memory, at its beginning."""
    descriptor = os.memfd_create("passed")
    with os.fdopen(descriptor, "w", closefd=False) as file:
        file.write(text)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
