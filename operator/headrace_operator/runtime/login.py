"""One login for Kopf and for our own client: the connection of `headrace_client`, with its rotating token."""

from __future__ import annotations

import asyncio

import aiohttp

from headrace_client.connection import Connection


def session_of(connection: Connection) -> aiohttp.ClientSession:
    """A session whose every request carries the credentials of that moment."""

    async def authenticate(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        request.headers.update(connection.headers(asyncio.get_running_loop().time()))
        response = await handler(request)
        if response.status == 401:
            connection.refused()
        return response

    tls = connection.ssl
    connector = aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls)
    return aiohttp.ClientSession(connector=connector, middlewares=(authenticate,))
