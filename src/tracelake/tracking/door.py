"""The way into the tracking store: requests that come together are stored by one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tracelake import limits
from tracelake._errors import StorageError
from tracelake.tracking.groups import Answers, RequestGroups
from tracelake.tracking.requests import RefusedSpans, TracedRequest
from tracelake.tracking.store import TrackingStore


class TrackingDoor(RequestGroups):
    """A queue of requests into the tracking store."""

    takes_apart: ClassVar[bool] = True
    noun: ClassVar[str] = "the tracking store"

    def __init__(
        self,
        store: TrackingStore,
        ack_timeout_s: float = limits.INBOX_ACK_TIMEOUT_S,
        group_max_bytes: int | None = None,
    ) -> None:
        """Store what comes in `store`; `group_max_bytes` is what the requests of one transaction may have."""
        super().__init__(ack_timeout_s, group_max_bytes)
        self._tracking = store

    def check(self) -> None:
        """See `RequestGroups`."""
        with self._lock:
            self._check_queue(0)
        self._tracking.check()

    def _store(self, requests: Sequence[TracedRequest]) -> Answers:
        """Store requests by one transaction; where that fails and the store is well, each by one of its own.

        So a request that the database does not take, for whatever it has, takes nobody down with it.
        """
        try:
            return self._tracking.write(requests)
        except (StorageError, OSError):
            raise
        except Exception:
            if len(requests) == 1:
                raise
            return [self._store_alone(request) for request in requests]

    def _store_alone(self, request: TracedRequest) -> RefusedSpans | Exception | None:
        try:
            return self._tracking.write([request])[0]
        except (StorageError, OSError) as error:
            return self.refusal(error)
        except Exception as error:  # noqa: BLE001  it is the answer to this request
            return error
