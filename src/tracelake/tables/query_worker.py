"""Process that runs one query of a user under a memory limit. The script imports nothing of Tracelake, so that it
starts fast.

The process reads a request from stdin: a JSON header, and an Arrow stream for each registered table, each preceded by
its length. It writes the rows to stdout as an Arrow stream, or an error to stderr as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
from typing import Any, BinaryIO, Final

import duckdb
import pyarrow as pa

TOO_MANY_ROWS = "TooManyRows"
"""Error type if the rows of the result take more memory than the request allows."""

_KINDS: Final = {
    "Out of Memory Error": "OutOfMemoryException",
    "INTERRUPT Error": "InterruptException",
    "IO Error": "IOException",
    "Permission Error": "PermissionException",
    "Invalid Input Error": "InvalidInputException",
    "INTERNAL Error": "InternalException",
    "FATAL Error": "FatalException",
}


def kind_of(error: BaseException) -> str:
    """Return the name of DuckDB's exception. If it occurs while rows are read, Arrow wraps it in an OSError."""
    if isinstance(error, OSError):
        return _KINDS.get(str(error).partition(":")[0], "Error")
    return type(error).__name__


def run(request: dict[str, Any], tables: dict[str, pa.Table], output: Any) -> None:
    """Run the query of a request, and write its rows. Raises duckdb.Error if DuckDB refuses the query, and MemoryError
    if its rows exceed `result_max_bytes`."""
    with contextlib.suppress(ValueError, OSError):  # the hard limit may be lower
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (request["process_max_bytes"], hard))
    with duckdb.connect() as db:
        for name, table in tables.items():
            db.register(name, table)
        for statement in request["statements"]:
            db.execute(statement)
        reader = db.sql(request["query"]).to_arrow_reader(request["batch_rows"])
        total_bytes = 0
        with pa.ipc.new_stream(output, reader.schema) as stream:
            for batch in reader:
                total_bytes += batch.nbytes
                if total_bytes > (request["result_max_bytes"] or total_bytes):
                    raise MemoryError(TOO_MANY_ROWS)
                stream.write_batch(batch)


def _read(stream: BinaryIO) -> bytes:
    return stream.read(int.from_bytes(stream.read(8), "big"))


def _exit_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> int:
    """Read the request from stdin and answer it. Return the exit code."""
    request = json.loads(_read(sys.stdin.buffer))
    tables = {name: pa.ipc.open_stream(_read(sys.stdin.buffer)).read_all() for name in request["tables"]}
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        run(request, tables, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except (duckdb.Error, pa.ArrowException, MemoryError, OSError) as error:
        name = TOO_MANY_ROWS if str(error) == TOO_MANY_ROWS else kind_of(error)
        message = str(error)[: request["message_max_chars"]]
        os.write(2, json.dumps({"type": name, "message": message}).encode())
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # DuckDB's threads may be in the middle of something
