"""Memory limit of queries: settings of every DuckDB database, and a process for queries that may exceed them.

DuckDB's `memory_limit` covers sorts, joins and aggregates. It does not cover the values that functions produce:
`repeat` and `range` allocate any size. A query whose values are no larger than its rows and its text runs in this
process. Any other query runs in a separate process whose memory the operating system limits.

The module also contains the cancellation of requests, which stops long reads.

The server cancels a request when its client disconnects or its deadline passes. A query that can be interrupted
registers its interrupt function. Code that cannot be interrupted checks between its steps.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Any, Final

import duckdb
import pyarrow as pa

from tracelake import _settings, limits
from tracelake._errors import BackPressureError, LimitError, QueryError
from tracelake.limits import QUERY_SPILL_MAX_BYTES
from tracelake.limits.input import MIB
from tracelake.scratch import delete_directory, scratch_directory
from tracelake.shards.rows import literal
from tracelake.tables.query_worker import TOO_MANY_ROWS, kind_of


class Cancellation:
    """Cancellation state of one request. Threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._reason: str | None = None
        self._interrupts: list[Callable[[], None]] = []

    def cancel(self, reason: str) -> None:
        """Interrupt every running query of the request, and refuse new ones. The first reason counts."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            for interrupt in self._interrupts:
                interrupt()

    @property
    def reason(self) -> str | None:
        """The reason of the cancellation; None while the request is active."""
        return self._reason

    def check(self) -> None:
        """Raise BackPressureError if the request is cancelled."""
        if self._reason is not None:
            raise BackPressureError(self._reason)

    @contextmanager
    def interruptible(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Call `interrupt` if the request is cancelled in this block. Raises BackPressureError if it already is."""
        with self._lock:
            self.check()
            self._interrupts.append(interrupt)
        try:
            yield
        finally:
            # Safety: `cancel` calls interrupts under the lock, so it calls no interrupt after the block has
            # ended.
            with self._lock:
                self._interrupts.remove(interrupt)


_OF_REQUEST: Final[ContextVar[Cancellation | None]] = ContextVar("tracelake_cancellation", default=None)


@contextmanager
def cancellable() -> Iterator[Cancellation]:
    """Give the reads in this `with` block, and in tasks and threads that it starts, a common cancellation; yield it."""
    cancellation = Cancellation()
    token = _OF_REQUEST.set(cancellation)
    try:
        yield cancellation
    finally:
        _OF_REQUEST.reset(token)


def current_cancellation() -> Cancellation:
    """Return the cancellation of the current request. Outside of a request, return one that is never cancelled."""
    return _OF_REQUEST.get() or Cancellation()


def check_cancelled() -> None:
    """Raise BackPressureError if the current request is cancelled."""
    current_cancellation().check()


BOUNDED_BATCH_ROWS: Final = 2_048
"""Rows of one Arrow batch of a query with a memory limit."""
QUERY_PROCESS_EXTRA_BYTES: Final = 1024 * MIB
"""Memory of a process that runs one query, besides that of its database."""
_QUERY_ERROR_MAX_CHARS: Final = 4_096
"""Characters of DuckDB's message about such a query."""

SETTING: Final = "TRACELAKE_QUERY_MEMORY_BYTES"
_WORKER: Final = Path(__file__).with_name("query_worker.py")


def memory_bytes() -> int:
    """Return the memory limit of queries, in bytes."""
    return _settings.load_settings().query_memory_bytes


def memory_settings(spill_directory: Path | None = None) -> list[str]:
    """Return statements that limit the memory of a database, and the files to which it spills."""
    return [
        f"set memory_limit = '{memory_bytes()}B'",
        f"set temp_directory = {literal(str(spill_directory or _spill_directory() / uuid.uuid4().hex))}",
        f"set max_temp_directory_size = '{QUERY_SPILL_MAX_BYTES}B'",
    ]


@cache
def _spill_directory() -> Path:
    """Return a directory of this process for files that queries spill. It is deleted when the process ends."""
    stack, owner = ExitStack(), os.getpid()
    atexit.register(lambda: stack.close() if os.getpid() == owner else None)
    return stack.enter_context(scratch_directory("query"))


def too_much_memory(error: object) -> LimitError:
    """Return the error for a query that needs more memory than the limit."""
    return LimitError(
        f"the query needs more memory than {SETTING} ({memory_bytes():,} bytes) allows, or spills more than "
        f"{QUERY_SPILL_MAX_BYTES:,} bytes to disk: select fewer rows or smaller values, or raise {SETTING}. "
        f"DuckDB: {str(error).splitlines()[0] if str(error) else 'out of memory'}"
    )


def streamed(relation: duckdb.DuckDBPyRelation, batch_rows: int) -> pa.RecordBatchReader:
    """Return a reader of the rows of a relation, which raises errors of DuckDB as such."""
    reader = relation.to_arrow_reader(batch_rows)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except OSError as error:
            raise getattr(duckdb, kind_of(error))(str(error)) from error

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def within_limit(batches: pa.RecordBatchReader) -> pa.Table:
    """Return the rows of a query. Raises LimitError if they take more memory than the limit."""
    total_bytes, rows = 0, list[pa.RecordBatch]()
    for batch in batches:
        total_bytes += batch.nbytes
        # Reading the setting takes longer than most queries, so its smallest value is compared first.
        if total_bytes > limits.QUERY_MEMORY_MIN_BYTES and total_bytes > memory_bytes():
            raise _too_many_rows()
        rows.append(batch)
    return pa.Table.from_batches(rows, batches.schema)


def _too_many_rows() -> LimitError:
    return LimitError(
        f"the rows of the query take more memory than {SETTING} ({memory_bytes():,} bytes) allows: select fewer "
        f"rows or columns, or raise {SETTING}"
    )


@contextmanager
def query_process(
    statements: Sequence[str],
    query: str,
    tables: Mapping[str, pa.Table] | None = None,
    *,
    is_bounded: bool = True,
) -> Iterator[pa.RecordBatchReader]:
    """Run a query in a process with a memory limit. `is_bounded` limits the memory of all its rows together, too.

    Raises:
        LimitError: the query needs more memory than the limit.
        duckdb.Error: DuckDB refuses the query.
        BackPressureError: the request is cancelled.
    """
    spill_directory = _spill_directory() / uuid.uuid4().hex
    header = {
        "statements": [*memory_settings(spill_directory), *statements],
        "query": query,
        "tables": list(tables or ()),
        "batch_rows": BOUNDED_BATCH_ROWS,
        "process_max_bytes": memory_bytes() + QUERY_PROCESS_EXTRA_BYTES,
        "result_max_bytes": memory_bytes() if is_bounded else None,
        "message_max_chars": _QUERY_ERROR_MAX_CHARS,
    }
    with TemporaryFile() as stderr, _worker(stderr) as worker:
        cancellation = current_cancellation()
        assert worker.stdin is not None, "it is a pipe"
        rows: Any = worker.stdout

        def error() -> Exception:
            worker.wait()
            cancellation.check()
            stderr.seek(0)
            return _error_of(stderr.read())

        def batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
            try:
                yield from reader
            except (OSError, pa.ArrowException) as broken:
                raise error() from broken
            if worker.wait():
                raise error()

        try:
            with cancellation.interruptible(worker.kill):
                try:
                    _send(worker.stdin, json.dumps(header).encode())
                    for table in (tables or {}).values():
                        _send(worker.stdin, _stream_of(table))
                    reader = pa.ipc.open_stream(rows)
                except (OSError, pa.ArrowException) as broken:
                    raise error() from broken
                yield pa.RecordBatchReader.from_batches(reader.schema, batches(reader))
        finally:
            worker.kill()
            worker.wait()
            delete_directory(spill_directory)


@contextmanager
def _worker(stderr: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", str(_WORKER)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, env=environment)
    try:
        yield worker
    finally:
        for stream in (worker.stdin, worker.stdout):
            with suppress(OSError):  # the process may have ended before it read all
                assert stream is not None, "it is a pipe"
                stream.close()


def _error_of(stderr: bytes) -> Exception:
    """Return the error that a query process wrote to stderr. If the process died without one, it ran out of memory."""
    try:
        error = json.loads(stderr)
        name, message = str(error["type"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return too_much_memory("")
    if name == TOO_MANY_ROWS:
        return _too_many_rows()
    if name in ("MemoryError", "ArrowMemoryError", "OutOfMemoryException"):
        return too_much_memory(message)
    kind = getattr(duckdb, name, None)
    if isinstance(kind, type) and issubclass(kind, duckdb.Error):
        return kind(message)
    return QueryError(f"DuckDB refuses the query: {message}")


def _stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(8, "big"))
    stream.write(message)
    stream.flush()
