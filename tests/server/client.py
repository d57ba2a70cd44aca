"""An HTTP client of an application in the same process."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
from fastapi import FastAPI


class Client:
    """A client of an application in this process that gets the same responses as a remote client, errors included."""

    def __init__(self, app: FastAPI, base_url: str = "http://127.0.0.1") -> None:
        """Send requests to this application, with this base URL."""
        self._app = app
        self._base_url = base_url

    def get(self, url: str, **options: Any) -> httpx.Response:
        """Send a GET request; options as in `httpx.Client.request`."""
        return self._request("GET", url, options)

    def post(self, url: str, **options: Any) -> httpx.Response:
        """Send a POST request; options as in `httpx.Client.request`."""
        return self._request("POST", url, options)

    def delete(self, url: str, **options: Any) -> httpx.Response:
        """Send a DELETE request; options as in `httpx.Client.request`."""
        return self._request("DELETE", url, options)

    def request(self, method: str, url: str, **options: Any) -> httpx.Response:
        """Send a request of any method; options as in `httpx.Client.request`."""
        return self._request(method, url, options)

    def _request(self, method: str, url: str, options: dict[str, Any]) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=self._base_url) as client:
                return await client.request(method, url, **options)

        return anyio.run(send)
