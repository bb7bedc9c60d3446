"""Keeps what the host's auth answered for a token, for a short time, and its HTTP connections; lets users take turns.

The host asks its auth service for each request, and builds a client with a TLS context of its own to do so. A service
that does not answer is reported as a wrong token, which clients do not repeat. And it builds the rules of its default
access policy for each check.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from ..concurrency.fair_yield import FairYield
from ..concurrency.offloading import in_own_thread
from ..concurrency.share import Share
from ..config.stack_file import KEYS_ENDPOINT
from ..core.access import Authenticate
from ..core.errors import ApiError
from ..core.lru_cache import LruCache
from ..generation.response_log import log_refused
from ..logs import get_logger
from .platform import SERVER, ServerCall, User
from .refusals import refuse

_AUTH: Final = SERVER.replace(".server.server", ".server.auth")
_PROVIDERS: Final = SERVER.replace(".server.server", ".server.auth_providers")
_ACCESS: Final = SERVER.replace(".server.server", ".access_control.access_control")
_BY_TOKEN: Final = frozenset(
    {"CustomAuthProvider", "OAuth2TokenAuthProvider", "GitHubTokenAuthProvider", "KubernetesAuthProvider"}
)
"""The host's providers that look a token up, or verify it. The others read headers of a trusted proxy, or a set."""
_MAX_KEPT: Final = 4096
"""Answers that are kept of each kind: accepted and refused. Refusals never displace what was accepted."""
_REFUSED_SECONDS: Final = 5.0
"""Time for which a refused token is refused without a question: a new token may be known to the service late."""
_UNAVAILABLE_SECONDS: Final = 1.0
_SEGMENTS: Final = 3
"""Segments of a path that name the API, as in `/v1/responses`: the host tells a custom service the path."""
_VERIFYING: Final = 4
"""Tokens that are verified in threads at a time. Each may load the issuer's keys."""
_ANSWER_SECONDS: Final = 15.0
"""Time for the whole answer about a token: the host limits the time of each read only."""
_ANSWER_BYTES: Final = 2**20
_UNAVAILABLE: Final = "The authentication service {}. Try again in a second."
_NOBODY: Final = "The authentication service names no user for this token."
_WRONG_KEY: Final = "Incorrect API key provided: it is unknown, revoked or expired. Ask the operator for another one."
_MAX_CLIENTS: Final = 8
_PAUSE: Final = 20
"""Iterations of the event loop between two of many requests of one user. A response of another begins in about 25."""
_UNREACHABLE: Final = frozenset(
    {"ApiError", "AuthServiceUnavailableError", "OSError", "PyJWKClientConnectionError", "TransportError"}
)
"""Errors, by their own class or one that they extend, after which nothing is known of a token."""
_OVERLOADED: Final = re.compile(r"(?:failed: |')(429|5\d\d)\b")
"""The status of the service in the messages of the host and of httpx."""

logger = get_logger(__name__)


class AuthUnavailable(BaseException):
    """Nothing is known of a token, because the auth service does not answer, or with an error.

    Its only argument is what the service does, for `_UNAVAILABLE`.
    The host's middleware turns each `Exception` into a 401, so this is none.
    """


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is known of a token: its user, or why it was refused, or what its service did instead (both None)."""

    user: Any
    refusal: str | None
    until: float
    failure: str = ""


class RememberedAuth:
    """A provider of the host's auth that is asked for a token once in a while, however many requests have it.

    Args:
        provider: the host's provider.
        seconds: time for which an accepted token is kept; 0 asks for each request.
    """

    requires_http_bearer: Final = True

    def __init__(self, provider: Any, seconds: float) -> None:
        self._provider = provider
        self._seconds = seconds
        self._accepted: LruCache[bytes, _Answer] = LruCache(_MAX_KEPT)
        self._others: LruCache[bytes, _Answer] = LruCache(_MAX_KEPT)
        self._asking: dict[bytes, asyncio.Task[_Answer]] = {}
        self._salt = os.urandom(32)
        self._verifying = asyncio.Semaphore(_VERIFYING)
        self._blocks = bool(getattr(provider.config, "jwks", None))

    async def validate_token(self, token: str, scope: Scope) -> Any:
        """Return the user of a token.

        Raises:
            ValueError: the token was refused.
            AuthUnavailable: the service does not answer, or with an error.
        """
        answer = await self._answer(token, scope) if self._seconds else await self._ask(token, scope)
        if answer.user is not None:
            return answer.user
        if answer.refusal is not None:
            raise ValueError(answer.refusal)
        raise AuthUnavailable(answer.failure)

    def get_auth_error_message(self, scope: Scope | None = None) -> str:
        """Return what the host says to a request without a token."""
        return str(self._provider.get_auth_error_message(scope))

    async def close(self) -> None:
        """Close the host's provider."""
        await self._provider.close()

    async def _answer(self, token: str, scope: Scope) -> _Answer:
        key = self._key(token, scope["path"])
        for kept in (self._accepted, self._others):
            if (known := kept.get(key)) is not None and time.monotonic() < known.until:
                return known
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._ask(token, scope))
            asking.add_done_callback(lambda ended: self._keep(key, ended))
        # A client that disconnects must not end what others wait for.
        return await asyncio.shield(asking)

    def _key(self, token: str, path: str) -> bytes:
        api = "/".join(path.split("/", _SEGMENTS)[:_SEGMENTS])
        return blake2b(f"{api}\n{token}".encode(), key=self._salt, digest_size=16).digest()

    def _keep(self, key: bytes, asked: asyncio.Task[_Answer]) -> None:
        del self._asking[key]
        if not asked.cancelled() and asked.exception() is None:
            answer = asked.result()
            (self._others if answer.user is None else self._accepted).set(key, answer)

    async def _ask(self, token: str, scope: Scope) -> _Answer:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                user, seconds = await self._validated(token, scope)
        except Exception as error:  # noqa: BLE001 (the host refuses a token after any error)
            if cause := _unavailable(error):
                until = time.monotonic() + min(self._seconds, _UNAVAILABLE_SECONDS)
                return _Answer(None, None, until, _failure(cause))
            return self._refused(str(error))
        if not user.principal:
            # Without a name, the user would be the one of a stack without authentication.
            logger.warning("auth service names no user for a token")
            return self._refused(_NOBODY)
        return _Answer(user, None, time.monotonic() + min(self._seconds, seconds))

    def _refused(self, words: str) -> _Answer:
        return _Answer(None, words, time.monotonic() + min(self._seconds, _REFUSED_SECONDS))

    async def _validated(self, token: str, scope: Scope, /) -> tuple[Any, float]:
        """Return the user of a token, and the seconds until it expires."""
        validating = self._provider.validate_token(token, scope)
        if not self._blocks:
            return await validating, _seconds_left(token)
        # The host loads an issuer's keys without giving way to other requests, for any key that a token names.
        async with self._verifying:
            return await in_own_thread(lambda: _result(validating)), _seconds_left(token)


class KeyAuth(RememberedAuth):
    """A provider of the host's auth for the keys of this store.

    Args:
        provider: the host's provider, whose endpoint is `KEYS_ENDPOINT`: it is not asked.
        seconds: time for which an accepted token is kept; 0 asks for each request.
        authenticate: knows the keys.
    """

    def __init__(self, provider: Any, seconds: float, authenticate: Authenticate) -> None:
        super().__init__(provider, seconds)
        self._authenticate = authenticate

    async def _validated(self, token: str, _: Scope, /) -> tuple[Any, float]:
        accepted = await self._authenticate(token)
        if accepted is None:
            raise ValueError(_WRONG_KEY)
        user = accepted.user
        tenant = {"tenant_id": user.tenant} if user.tenant else {}
        attributes = {name: list(values) for name, values in user.attributes.items()}
        seconds = float("inf") if accepted.seconds is None else accepted.seconds
        return User(user.principal, attributes, **tenant), seconds


def _result(never_waiting: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that waits for nothing."""
    try:
        never_waiting.send(None)
    except StopIteration as ended:
        return ended.value
    never_waiting.close()
    raise RuntimeError("The host's auth waits for something: update llama-stack-responses.")


def _unavailable(error: BaseException) -> BaseException | None:
    """Return the first cause of an error, from itself on, after which nothing is known of a token."""
    for each in _causes(error):
        if _UNREACHABLE & {kind.__name__ for kind in type(each).__mro__} or _OVERLOADED.search(str(each)):
            return each
    return None


def _failure(cause: BaseException) -> str:
    """Log why nothing is known of a token, and return what the service does, for `_UNAVAILABLE`."""
    if status := _OVERLOADED.search(str(cause)):
        logger.warning("auth service answered with the status %s", status[1])
        return f"answered with the status {status[1]}"
    logger.warning("auth service does not answer: %s", type(cause).__name__)
    return "does not answer"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _seconds_left(token: str) -> float:
    """Return the time until a token expires that says so itself, as a JWT does; it has been verified."""
    with suppress(ValueError, TypeError, LookupError):
        payload = token.split(".")[1]
        return float(orjson.loads(urlsafe_b64decode(f"{payload}==="))["exp"]) - time.time()
    return float("inf")


def remembering_users(seconds: float, authenticate: Authenticate | None = None) -> Callable[[ServerCall], ServerCall]:
    """Return what makes the host's middleware for auth remember users, and answer 503 without its service.

    The middleware may have been made before. A WebSocket has one of its own with the same settings: they share one.
    Requests that arrive together take turns by what identifies their users, as these are not known yet: otherwise the
    request of one user would wait until the host has begun with the two hundred that another one has sent.

    Args:
        seconds: time for which an accepted token is kept.
        authenticate: knows the keys of this store, if it has some.
    """
    made: dict[int, RememberedAuth] = {}
    arrivals = FairYield(_PAUSE)

    def remembered(provider: Any) -> Any:
        if type(provider).__name__ not in _BY_TOKEN:
            return provider
        if authenticate and getattr(provider.config, "endpoint", None) == KEYS_ENDPOINT:
            return made.setdefault(id(provider.config), KeyAuth(provider, seconds, authenticate))
        return made.setdefault(id(provider.config), RememberedAuth(provider, seconds))

    def remembering(call: ServerCall) -> ServerCall:
        async def called(self: Any, scope: Scope, receive: Receive, send: Send) -> None:
            if type(self.auth_provider) is not RememberedAuth:
                self.auth_provider = remembered(self.auth_provider)
            await arrivals.wait_behind_others(Share(_credentials(scope)))
            try:
                await call(self, scope, receive, send)
            except AuthUnavailable as unavailable:
                error = ApiError(503, _UNAVAILABLE.format(unavailable), retry_after=1)
                log_refused(error)
                await refuse(error, scope, send)

        return called

    return remembering


def _credentials(scope: Scope) -> bytes:
    """Return the header of a request that says whose it is; nothing if it has none."""
    return next((value for name, value in scope.get("headers", ()) if name == b"authorization"), b"")


def keep_what_auth_builds() -> None:
    """Make the host's auth keep its HTTP clients and its default policy, which it builds for each request."""
    providers: Any = sys.modules.get(_PROVIDERS)
    access: Any = sys.modules.get(_ACCESS)
    for name in ("httpx", "httpx2"):
        if hasattr(providers, name):
            setattr(providers, name, _OpenClients(sys.modules[name]))
    if access is not None:
        policy = access.default_policy()
        access.default_policy = lambda: policy


def let_public_paths_answer() -> None:
    """Make the host's auth ask for no token if a path that anyone may read has no route for the method.

    The host knows the routes by one of their methods: it would answer `HEAD`, and methods that a public path lacks,
    with 401, of a path that needs no token.
    """
    auth: Any = sys.modules.get(_AUTH)
    if auth is not None:
        auth.find_matching_route = _or_public(auth.find_matching_route)


def _or_public(find: Callable[[str, str, Any], tuple[Any, ...]]) -> Callable[[str, str, Any], tuple[Any, ...]]:
    """Return what finds a route by its method and path, and then a public one that is read there."""

    def find_route(method: str, path: str, routes: Any) -> tuple[Any, ...]:
        try:
            return find(method, path, routes)
        except ValueError:
            found = find("GET", path, routes)
            if found[-1].require_authentication:
                raise
            return found

    return find_route


class _OpenClients:
    """Stands for httpx in the host's auth: clients with equal settings are one, which stays open.

    Args:
        module: httpx or httpx2.
    """

    def __init__(self, module: Any) -> None:
        self._module, self._bounded = module, _bounded_kind(module)
        self.clients: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return self._client if name == "AsyncClient" else getattr(self._module, name)

    def _client(self, **settings: Any) -> Any:
        # A TLS context may be made for each request, and then says nothing of what it has loaded.
        key = repr(sorted(settings.items()))
        if key not in self.clients:
            if len(self.clients) == _MAX_CLIENTS:
                del self.clients[next(iter(self.clients))]
            hooks = {"response": [self._bound]}
            self.clients[key] = _left_open(self._module.AsyncClient)(event_hooks=hooks, **settings)
            self.clients[key].headers["accept-encoding"] = "identity"
            # An answer for one user sets no cookie that a question for another one has.
            self.clients[key].cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
        return self.clients[key]

    async def _bound(self, response: Any) -> None:
        """Bound an answer, which is read after this."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise self._module.ReadError("The answer is compressed.")
        response.stream = self._bounded(response.stream)


def _bounded_kind(module: Any) -> Any:
    """Return the class of streams of httpx that end with its `ReadError` once they have passed on too many bytes."""

    class Bounded(module.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            read = 0
            async for piece in self._stream:
                read += len(piece)
                if read > _ANSWER_BYTES:
                    raise module.ReadError("The answer is too long.")
                yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    return Bounded


def _left_open(kind: Any) -> Any:
    """Return a class of clients that the end of a block does not close."""

    async def entered(self: Any) -> Any:
        return self

    async def left(*_: object) -> None:
        pass

    return type(kind.__name__, (kind,), {"__aenter__": entered, "__aexit__": left})
