"""One login for Kopf and for our own client: the connection of `headrace_client`, with its renewed credentials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import aiohttp
import kopf

from headrace_client.connection import Connection, Credentials
from headrace_client.errors import KubeconfigError

_FOREVER = timedelta(days=365)  # the session renews itself; Kopf logs in again only after a 401


async def log_in(connection: Connection) -> kopf.AiohttpSession:
    """Sign in, and make the session that Kopf's login handler returns. Raises `KubeconfigError`."""
    credentials = await connection.credentials()
    return kopf.AiohttpSession(
        server=credentials.configuration.host,
        aiohttp_session=session_of(connection, credentials),
        default_namespace=connection.namespace,
        expiration=datetime.now(UTC) + _FOREVER,  # noqa: TID251
    )


def session_of(connection: Connection, first: Credentials) -> aiohttp.ClientSession:
    """A session that signs each request with the credentials current at that moment; `first` are those of now."""
    tls, loaded = first.ssl_context(), first.tls

    async def authenticate(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        nonlocal loaded
        with _as_lost_connection():
            credentials = await connection.credentials()
            if credentials.tls != loaded:
                # Open connections keep the old certificate; a 401 on one makes Kopf ask for a new session.
                credentials.reload(tls)
                loaded = credentials.tls
        request.headers.update(credentials.headers())
        request.server_hostname = credentials.configuration.tls_server_name
        response = await handler(request)
        if response.status == 401:
            with _as_lost_connection():
                await connection.refused(credentials)
        return response

    configuration = first.configuration
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=tls),
        middlewares=(authenticate,),
        proxy=configuration.proxy,
        **configuration.client_session_kwargs,
    )


@contextmanager
def _as_lost_connection() -> Iterator[None]:
    """Show Kopf a failed login as a lost connection, so it tries again instead of exiting."""
    try:
        yield
    except KubeconfigError as error:
        raise aiohttp.ClientConnectionError(str(error)) from error
