"""Long operations of a server. Each runs in a thread; the most recent ones can be looked up by id."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from tracelake import limits
from tracelake._errors import BackPressureError, InternalError, NotFoundError, TracelakeError

Result: TypeAlias = dict[str, Any]
Tell: TypeAlias = Callable[[Result], None]
Body: TypeAlias = Callable[[Tell], Result]
"""Work of an operation. It returns a result, and may report intermediate results."""
_log: Final = logging.getLogger("tracelake.server")


@dataclass(slots=True)
class ServerOperation:
    """Operation in progress or finished. Only its thread changes it, one field at a time."""

    id: str
    kind: str
    asked_by: str
    began_ns: int
    state: Literal["running", "done", "failed"] = "running"
    seconds: float | None = None
    result: Result | None = None
    """Result so far."""
    error: Exception | None = None

    def to_dict(self) -> Result:
        """Return the operation as a JSON object."""
        error = None if self.error is None else str(self.error)
        return {
            "id": self.id,
            "kind": self.kind,
            "asked_by": self.asked_by,
            "state": self.state,
            "began_ns": self.began_ns,
            "seconds": self.seconds,
            "result": self.result,
            "error": error,
        }


class Operations:
    """Operations of one server. It remembers the newest, and limits those that requests start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[ServerOperation, threading.Event]] = {}
        self._threads: dict[str, threading.Thread] = {}

    def carry_out(self, kind: str, asked_by: str, body: Body) -> ServerOperation:
        """Run an operation in this thread. An error is recorded, not raised."""
        operation = self._new(kind, asked_by)
        self._carry_out(operation, body)
        return operation

    def begin(self, kind: str, asked_by: str, body: Body) -> ServerOperation:
        """Start an operation in a new thread. Raises BackPressureError if too many are running."""
        with self._lock:
            self._threads = {id_: thread for id_, thread in self._threads.items() if thread.is_alive()}
            name, at_once = f"tracelake-{kind}", limits.OPERATIONS_AT_ONCE
            alike = sum(thread.name == name for thread in self._threads.values())
            # One slot is reserved for other kinds. Archive passes wait for each other, and a restore must not
            # wait for them.
            if len(self._threads) >= at_once or alike >= max(1, at_once - 1):
                raise BackPressureError(
                    f"{len(self._threads)} operations are under way on this server, and no more at once are begun; "
                    "ask again when one of them is over"
                )
            operation = self._new(kind, asked_by, locked=True)
            thread = threading.Thread(target=self._carry_out, args=(operation, body), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                del self._known[operation.id]
                raise BackPressureError(
                    f"there is no thread for a {kind} on this server: {error}; ask again later"
                ) from error
            self._threads[operation.id] = thread
        return operation

    def wait(self, operation: ServerOperation, wait_s: float) -> ServerOperation:
        """Wait up to `wait_s` seconds for an operation to end. Raises its error."""
        with self._lock:
            known = self._known.get(operation.id)
        if known is not None:
            known[1].wait(wait_s)
        if operation.error is not None:
            raise operation.error
        return operation

    def get(self, operation_id: str) -> ServerOperation:
        """Return an operation. Raises NotFoundError."""
        with self._lock:
            known = self._known.get(operation_id)
        if known is None:
            raise NotFoundError(
                f"no operation {operation_id[: limits.NAME_QUOTED_MAX_CHARS]!r}: this server knows the last "
                f"{limits.OPERATIONS_KEPT}, and none of before it started or of other servers"
            )
        return known[0]

    def newest(self) -> list[ServerOperation]:
        """Return the remembered operations, newest first."""
        with self._lock:
            return [operation for operation, _ in reversed(self._known.values())]

    def join(self, wait_s: float) -> bool:
        """Wait up to `wait_s` seconds for all running operations; return whether they ended."""
        until_s = time.monotonic() + wait_s
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _new(self, kind: str, asked_by: str, *, locked: bool = False) -> ServerOperation:
        operation = ServerOperation(uuid.uuid4().hex, kind, asked_by, time.time_ns())
        if locked:
            self._keep(operation)
        else:
            with self._lock:
                self._keep(operation)
        return operation

    def _keep(self, operation: ServerOperation) -> None:
        """Remember an operation, and forget the oldest finished ones."""
        self._known[operation.id] = (operation, threading.Event())
        over = [id_ for id_, (each, _) in self._known.items() if each.state != "running"]
        for id_ in over[: max(0, len(self._known) - limits.OPERATIONS_KEPT)]:
            del self._known[id_]

    def _carry_out(self, operation: ServerOperation, body: Body) -> None:
        began_s = time.monotonic()

        def tell(result: Result) -> None:
            operation.result = result

        try:
            operation.result = body(tell)
        except (TracelakeError, OSError) as error:
            operation.error = _alone(error)
        except Exception:  # noqa: BLE001  whoever asked is told, and the thread has nobody else to tell
            _log.exception("a %s failed by a fault of the server", operation.kind)
            operation.error = InternalError("internal error; the log of the server says more")
        operation.seconds = time.monotonic() - began_s
        operation.state = "done" if operation.error is None else "failed"
        with self._lock:
            known = self._known.get(operation.id)
        if known is not None:
            known[1].set()


def _alone(error: Exception) -> Exception:
    """Return an error without its traceback, whose frames would keep large objects such as batches alive."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
