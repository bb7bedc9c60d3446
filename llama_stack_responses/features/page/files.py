"""The routes of the built-in page's files, which need no token: they hold no data."""

from __future__ import annotations

import re
from typing import Final

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from ...concurrency.offloading import in_thread
from ...core.errors import ApiError
from ...wire.public_routes import PublicRoute
from ...wire.request_handling import Handler
from .assets import Asset, Assets

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_PATHS: Final = ("/ui", "/ui/", "/ui/{a}", "/ui/{a}/{b}", "/ui/{a}/{b}/{c}", "/ui/{a}/{b}/{c}/{d}")
"""The paths of files and views."""

_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-robots-tag": "noindex, nofollow",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "vary": "accept-encoding",
}


def file_routes(assets: Assets) -> list[PublicRoute]:
    """Return the routes of these files, and the one that leads to the page."""
    answer = _file(assets)
    return [*(PublicRoute(path, answer) for path in _PATHS), PublicRoute("/", _to_page)]


async def _to_page(request: Request) -> Response:
    """Lead who opens the server's address to the page."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/ui")


def _file(assets: Assets) -> Handler:
    async def get_file(request: Request) -> Response:
        path = "/".join(request.path_params[name] for name in "abcd" if name in request.path_params)
        if not assets.is_read:
            # Not at start-up, which it would delay: a server starts more often than its page is opened.
            await in_thread(assets.read)
        asset = assets.find(path)
        if asset is None:
            raise ApiError(404, f"The page has no file '{path[:80]}'.")
        return _answer(asset, request, lasting=assets.is_lasting(path))

    return get_file


def _answer(asset: Asset, request: Request, *, lasting: bool) -> Response:
    compressed = asset.compressed if _takes_gzip(request) else None
    headers = {
        **_HEADERS,
        "cache-control": "public, max-age=31536000, immutable" if lasting else "no-cache",
        "etag": f'"{asset.digest}{"-gzip" if compressed else ""}"',
    }
    if headers["etag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if compressed:
        return Response(compressed, media_type=asset.media_type, headers=headers | {"content-encoding": "gzip"})
    return Response(asset.content, media_type=asset.media_type, headers=headers)


def _takes_gzip(request: Request) -> bool:
    """Return whether the client takes gzip, whatever it prefers."""
    names = (each.strip().lower() for each in request.headers.get("accept-encoding", "").split(","))
    return any(re.fullmatch(r"(?:gzip|\*)(?:\s*;\s*q=(?:1(?:\.0+)?|0\.\d*[1-9]\d*))?", each) for each in names)
