"""Calls from web pages: which origins a browser may let call (CORS)."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

# What a page may read of an answer beside its body.
SHOWN_HEADERS = ("X-Request-Id", "Retry-After", "X-Headrace-Generation", "X-Headrace-Revision")
REMEMBERED_SECONDS = 600


def cross_origin(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """ASGI: answers browsers' questions before a call (they carry no key), and marks answers for these origins."""
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=("GET", "POST"), allow_headers=("*",), expose_headers=SHOWN_HEADERS,
        max_age=REMEMBERED_SECONDS,
    )  # fmt: skip
