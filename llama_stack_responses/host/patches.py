"""Changes the classes of the host's server and of uvicorn, and has its loggers skip disabled levels, in the process.

docs/explanation/host-changes.md has each place where this package reaches into the host or a library, with the attack
or the figure that needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import structlog
from structlog.stdlib import LoggerFactory, filter_by_level

from ..config import ResponsesConfig
from ..core.access import Authenticate
from ..wire.after_routes import sending_rest
from .authentication import keep_what_auth_builds, let_public_paths_answer, remembering_users
from .compressed_bodies import decompressing_bodies
from .cross_site_guard import refusing_cross_site_requests
from .platform import SERVER, ServerCall
from .provider_data import Noted, checking_headers, checking_text
from .unknown_urls import answering_unknown_urls
from .web_server.protocols import use_protocols

_ORIGINAL: Final = "llama_stack_responses_original_call"


def apply_patches(config: ResponsesConfig, authenticate: Authenticate | None = None, note: Noted | None = None) -> None:
    """Make the host's server and uvicorn work within bounds, and its auth know the keys of this store, if it has some.

    Args:
        authenticate: knows the keys.
        note: notes a request for a response that is refused behind the host's auth.
    """
    extend_server(config, authenticate, note)
    keep_what_auth_builds()
    let_public_paths_answer()
    use_protocols()


def extend_server(config: ResponsesConfig, authenticate: Authenticate | None = None, note: Noted | None = None) -> None:
    """Extend the application and the middlewares of the host's server; those that it does not have stay away.

    The middleware of provider data is the innermost one that every server of both hosts has. That of zstd, which only
    OGX has, runs before it.
    """
    bodies, foreign = decompressing_bodies(config.limits.request_bytes), refusing_cross_site_requests(config)
    _extend("StackApp", answering_unknown_urls, bodies, foreign)
    _extend("ZstdDecompressionMiddleware", checking_text)
    _extend("AuthenticationMiddleware", remembering_users(config.auth_cache_seconds, authenticate))
    _extend("ProviderDataMiddleware", checking_headers(note), sending_rest)


def _extend(name: str, *wrappers: Callable[[ServerCall], ServerCall]) -> None:
    """Wrap the `__call__` of a class of the host's server, the last wrapper outermost, in place of earlier ones."""
    kind: Any = getattr(sys.modules.get(SERVER), name, None)
    if kind is not None:
        original: ServerCall = getattr(kind, _ORIGINAL, kind.__call__)
        setattr(kind, _ORIGINAL, original)
        kind.__call__ = reduce(lambda call, wrap: wrap(call), wrappers, original)


def skip_disabled_levels() -> None:
    """Have the host's loggers check the level of a line first.

    They otherwise compute its fields and its time, and `logging` drops the result. The host's router and its access
    checks log several lines at level DEBUG for each request.
    """
    config = structlog.get_config()
    processors = config["processors"]
    if isinstance(config["logger_factory"], LoggerFactory) and filter_by_level not in processors:
        # In place, because loggers that were used before have this list.
        processors.insert(0, filter_by_level)
