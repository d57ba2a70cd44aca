"""The S3 server of `moto`, limited to one request at a time.

Without this limit, it checks the condition of a put, writes, and sets the metadata, without a lock. Two writers
could both win, which is impossible on S3.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto import server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication

_one_at_a_time = threading.Lock()


class OneByOne(DomainDispatcherApplication):
    """WSGI application that handles one request at a time."""

    def __call__(self, *request: Any) -> Any:
        """Answer a request."""
        with _one_at_a_time:
            return super().__call__(*request)


if __name__ == "__main__":
    setattr(server, "DomainDispatcherApplication", OneByOne)  # noqa: B010  mypy takes no class for another
    server.main(sys.argv[1:])
