"""Stand-in for Google Cloud Storage, written from the reference of its XML API.

No emulator honours conditions on the XML API, which the client library uses. So this shows the requests that we
send and how we handle the replies. It proves nothing about Google's servers.
https://cloud.google.com/storage/docs/xml-api/reference-headers
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "tests"
PAGE = 7
"""Objects per page of a listing; few, so that tests read several pages."""


@dataclass(frozen=True)
class Stored:
    """One object."""

    body: bytes
    metadata: dict[str, str]
    generation: int
    modified: datetime

    def headers(self) -> dict[str, str]:
        """Return the headers of a read; the ETag depends on the content, as Google's does."""
        return {
            "ETag": f'"{hashlib.md5(self.body).hexdigest()}"',
            "Last-Modified": format_datetime(self.modified, usegmt=True),
            "x-goog-generation": str(self.generation),
            **self.metadata,
        }


class GcsServer(ThreadingHTTPServer):
    """A server on a free port of this machine, with the bucket `tests`, in memory."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        """Start it in a thread."""
        super().__init__(("127.0.0.1", 0), _Request)
        self.port = self.server_port
        self.lock = threading.Lock()
        self.objects: dict[str, Stored] = {}
        self.generations = 1_000
        self.refusals: list[int] = []
        """Status codes for the next puts, which are then not done."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def environment(self, port: int | None = None) -> dict[str, str]:
        """Return the client's environment variables."""
        # Skipping signatures by GOOGLE_SKIP_SIGNATURE is for reads only; writes would still ask for a token.
        key = {
            "gcs_base_url": f"http://127.0.0.1:{port or self.port}",
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key)}

    def url(self) -> str:
        """Return the URL of an empty location in the bucket."""
        return f"gs://{BUCKET}/{uuid.uuid4().hex}"

    def close(self) -> None:
        """End it."""
        self.shutdown()
        self.server_close()


class _Request(BaseHTTPRequestHandler):
    server: GcsServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_PUT(self) -> None:
        """Write or copy an object, on the condition of its generation."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            if self.server.refusals:
                self._error(self.server.refusals.pop(0), "Refused")
                return
            path = self._path()
            if path is None:
                return
            wanted = self.headers.get("x-goog-if-generation-match")
            found = self.server.objects.get(path)
            if wanted is not None and int(wanted) != (found.generation if found else 0):
                self._error(412, "PreconditionFailed")
                return
            metadata = {k: v for k, v in self.headers.items() if k.lower().startswith("x-goog-meta-")}
            if source := self.headers.get("x-goog-copy-source"):
                copied = self.server.objects.get(unquote(source).removeprefix(f"{BUCKET}/"))
                if copied is None:
                    self._error(404, "NoSuchKey")
                    return
                body, metadata = copied.body, copied.metadata
            self.server.generations += 1
            stored = Stored(body, metadata, self.server.generations, datetime.now(UTC))
            self.server.objects[path] = stored
        self._answer(200, b"", stored.headers())

    def do_GET(self) -> None:
        """Read an object, or list."""
        path = self._path()
        if path is None:
            return
        if not path:
            self._list()
            return
        with self.server.lock:
            found = self.server.objects.get(path)
        if found is None:
            self._error(404, "NoSuchKey")
            return
        size, headers = len(found.body), found.headers()
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1 if last else size, size)
            if start >= size:
                self._error(416, "InvalidRange")
                return
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
            self._answer(206, found.body[start:end], headers)
        else:
            self._answer(200, found.body, headers)

    def do_HEAD(self) -> None:
        """Answer a HEAD request: the headers of a read."""
        self.do_GET()

    def do_DELETE(self) -> None:
        """Delete an object."""
        path = self._path()
        if path is not None:
            with self.server.lock:
                found = self.server.objects.pop(path, None)
            if found:
                self._answer(204, b"", {})
            else:
                self._error(404, "NoSuchKey")

    def _list(self) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        after = max(asked.get("start-after", ""), asked.get("continuation-token", ""), key=str.encode)
        with self.server.lock:
            found = sorted(
                (path.encode(), stored)
                for path, stored in self.server.objects.items()
                if path.startswith(asked.get("prefix", "")) and path.encode() > after.encode()
            )
        page = [(path.decode(), stored) for path, stored in found[:PAGE]]
        more = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if found[PAGE:] else ""
        entries = "".join(
            f"<Contents><Key>{escape(path)}</Key><Size>{len(stored.body)}</Size>"
            f"<LastModified>{stored.modified.isoformat()}</LastModified><ETag>x</ETag></Contents>"
            for path, stored in page
        )
        listing = f"<ListBucketResult>{entries}{more}</ListBucketResult>"
        self._answer(200, listing.encode(), {"Content-Type": "application/xml"})

    def _path(self) -> str | None:
        """Return the path in the bucket; if the bucket is absent, reply so and return None."""
        bucket, _, path = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
        if bucket == BUCKET:
            return path
        self._error(404, "NoSuchBucket")
        return None

    def _error(self, status: int, code: str) -> None:
        text = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code></Error>"
        self._answer(status, text.encode(), {"Content-Type": "application/xml"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Suppress the log."""
