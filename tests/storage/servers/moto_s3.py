"""The S3 server of `moto`, answering one request after the other.

By itself it checks the condition of a put and then writes, and sets the metadata after that, with nothing to keep the
requests of other threads out: two writers can both win, as they never can on S3.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto import server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication

_one_at_a_time = threading.Lock()


class OneByOne(DomainDispatcherApplication):
    """The application, for one request at a time."""

    def __call__(self, *request: Any) -> Any:
        """Answer a request."""
        with _one_at_a_time:
            return super().__call__(*request)


if __name__ == "__main__":
    setattr(server, "DomainDispatcherApplication", OneByOne)  # noqa: B010  mypy takes no class for another
    server.main(sys.argv[1:])
