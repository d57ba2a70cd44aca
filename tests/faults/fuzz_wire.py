"""Connections of the fuzzer: HTTP requests written several at a time, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import httptools

from tests.faults.fuzz_inputs import Sent
from tests.patience import HANG_S

EDGE_WAIT_S = 1.0
"""Wait for the answer to half a request, because the server may wait for the rest."""


class Answered(NamedTuple):
    """A response."""

    status: int
    body: bytes
    goes_on: bool
    """Return whether the connection accepts another request."""


def on_the_wire(sent: Sent, host: str, token: str | None, more: Sequence[tuple[str, str]] = ()) -> bytes:
    """Return the bytes of a request."""
    headers = [("Host", host), *sent.headers, *more]
    if token is not None:
        headers.append(("Authorization", f"Bearer {token}"))
    if sent.body or sent.method not in {"GET", "HEAD"}:
        headers.append(("Content-Length", str(len(sent.body))))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"{sent.method} {sent.target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + sent.body


class HttpConnection:
    """One connection. It reads an answer completely before the next."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answers: list[Answered] = []
        self._body: list[bytes] = []

    async def ask(self, requests: Sequence[bytes]) -> list[Answered]:
        """Send pipelined requests; return the answers, fewer if the server ended the connection."""
        reader, writer = await self._opened()
        answers: list[Answered] = []
        # Read and write at once, because the server stops reading while its answers are not read.
        writing = asyncio.ensure_future(self._write(writer, requests))
        try:
            while len(answers) < len(requests):
                if not await self._read(reader):
                    self.close()
                    break
                answers, self._answers = answers + self._answers, []
                if answers and not answers[-1].goes_on:
                    self.close()
                    break
        except OSError:
            self.close()
        finally:
            writing.cancel()
            answers, self._answers = answers + self._answers, []
        return answers

    async def edge(self, data: bytes) -> Answered | None:
        """Send bytes that may be no request; return the first answer, or None without one. Ends the connection."""
        reader, writer = await self._opened()
        writer.write(data)
        try:
            async with asyncio.timeout(EDGE_WAIT_S):
                while not self._answers and await self._read(reader):
                    pass
        except (TimeoutError, OSError):
            pass
        finally:
            answers, self._answers = self._answers, []
            self.close()
        return answers[0] if answers else None

    def close(self) -> None:
        """End it; the next request opens another."""
        if self._writer is not None:
            self._writer.close()
        self._writer = self._reader = None
        self._answers = []

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address)
            self._parser = httptools.HttpResponseParser(self)
            self._answers = []
        return self._reader, self._writer

    async def _write(self, writer: asyncio.StreamWriter, requests: Sequence[bytes]) -> None:
        try:
            for request in requests:
                writer.write(request)
                await writer.drain()
        except OSError:
            return  # the reader sees it, too

    async def _read(self, reader: asyncio.StreamReader) -> bool:
        async with asyncio.timeout(HANG_S):
            piece = await reader.read(262_144)
        if piece:
            self._parser.feed_data(piece)
        return bool(piece)

    def on_message_begin(self) -> None:
        """Begin an answer; httptools calls it, and those below."""
        self._body = []

    def on_body(self, body: bytes) -> None:
        """Keep a piece of its body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Keep the answer, unless it is an interim one."""
        status = self._parser.get_status_code()
        if status >= 200:
            self._answers.append(Answered(status, b"".join(self._body), self._parser.should_keep_alive()))
