"""CORS: the origins whose web pages may call this server from a browser."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

# Headers of an answer that a page may read.
SHOWN_HEADERS = ("X-Request-Id", "Retry-After", "X-Headrace-Generation", "X-Headrace-Revision")
REMEMBERED_SECONDS = 600


def cross_origin(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """ASGI: answers preflight requests (they carry no key) and adds CORS headers to answers for these origins."""
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=("GET", "POST"), allow_headers=("*",), expose_headers=SHOWN_HEADERS,
        max_age=REMEMBERED_SECONDS,
    )  # fmt: skip
