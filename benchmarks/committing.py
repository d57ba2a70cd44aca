"""Who commits in `commit_contention.py`: Tracelake over several stores, deltalake and pyiceberg.

Everybody does the same in a turn: write a small Parquet file and commit it. A contestant travels to the process of a
worker, and opens there what it commits to.
"""

from __future__ import annotations

import copy
import io
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tests.versions.histories import check_history
from tracelake.storage import ObjectStore, open_key_value, open_objects
from tracelake.testing import CrashingKeyValueStore, CrashPoint
from tracelake.versions.model import TableAt
from tracelake.versions.repository import Repository

ROWS = 10
"""Rows of one turn."""


class Committer(Protocol):
    """One committer, in one thread."""

    def commit(self, turn: int) -> str:
        """Write the rows of a turn and commit them; return the commit's id, empty where it has none."""

    def operations(self) -> tuple[float, float]:
        """Return how many calls were made to the key-value store and to the object store."""


class Contestant(Protocol):
    """Something to commit to."""

    @property
    def name(self) -> str:
        """What the table of results calls it."""

    def prepare(self) -> None:
        """Make it, empty."""

    def open(self) -> Callable[[int], Committer]:
        """Open it in a process; return what makes the committer of a number, in its own thread."""

    def check(self, acknowledged: Sequence[tuple[str, str]]) -> None:
        """Assert that each turn that was acknowledged, as (key, commit id), is there exactly once."""


def rows_of(number: int, turn: int) -> pa.Table:
    """Return the rows of one turn."""
    ids = range(turn * ROWS, (turn + 1) * ROWS)
    return pa.table({"writer": pa.array([number] * ROWS, pa.int64()), "id": pa.array(ids, pa.int64())})


def key_of(number: int, turn: int) -> str:
    """Return the name of what one turn commits."""
    return f"files/w{number}/{turn}"


# Tracelake


@dataclass(frozen=True)
class Tracelake:
    """Commits to one branch."""

    store: str
    records_url: str
    objects_url: str
    upload: bool = True
    """Whether a turn writes its rows, too: peers cannot commit without."""

    @property
    def name(self) -> str:
        """What the table of results calls it."""
        return f"tracelake, {self.store}"

    def prepare(self) -> None:
        """Make both stores."""
        open_objects(self.objects_url)
        open_key_value(self.records_url).close()

    def open(self) -> Callable[[int], Committer]:
        """Open the repository, which the committers of a process share, as threads of a program do."""
        calls = Calls()
        objects = counted(open_objects(self.objects_url), calls)
        records = CrashingKeyValueStore(open_key_value(self.records_url), calls)
        repository = Repository(records, objects)
        return lambda number: TracelakeCommitter(repository, objects, calls, number, self.upload)

    def check(self, acknowledged: Sequence[tuple[str, str]]) -> None:
        """History is linear, holds each commit once, and the head names all that was committed."""
        key_value, objects = open_key_value(self.records_url), open_objects(self.objects_url)
        check_history(Repository(key_value, objects), acknowledged)
        key_value.close()


class Calls(CrashPoint):
    """What the committers of a process ask of the stores, together."""

    objects = committers = 0


class TracelakeCommitter:
    """Commits small changes to entries of its own, and counts what the stores are asked."""

    def __init__(
        self, repository: Repository, objects: ObjectStore, calls: Calls, number: int, upload: bool
    ) -> None:
        self._repository, self._objects, self._calls = repository, objects, calls
        self._number, self._upload = number, upload
        calls.committers += 1

    def commit(self, turn: int) -> str:
        """Write the rows as an object, and commit an entry that names it."""
        key = key_of(self._number, turn)
        if self._upload:
            buffer = io.BytesIO()
            pq.write_table(rows_of(self._number, turn), buffer)
            self._objects.put(f"{key}.parquet", buffer.getvalue())
            self._calls.objects -= 1  # the rows are not among them
        return self._repository.commit_entries(
            {key: TableAt(key, turn)},
            message=key,
            committer=f"w{self._number}",
            created_at=datetime.now(UTC).isoformat(),
            metadata={},
        )

    def operations(self) -> tuple[float, float]:
        """Return this committer's share of the calls; the rows are not among them."""
        return self._calls.calls / self._calls.committers, self._calls.objects / self._calls.committers


def counted(objects: ObjectStore, calls: Calls) -> ObjectStore:
    """Return the same store, of the same class, that counts how many objects each call is about."""
    twin = copy.copy(objects)
    for name in ("put", "create", "create_all", "get", "get_range", "head", "list", "copy", "delete"):
        if hasattr(objects, name):
            setattr(twin, name, counting(getattr(objects, name), calls))
    return twin


def counting(method: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    """Return a method that counts its calls; one about many objects counts as one for each."""

    def call(*arguments: Any) -> Any:
        calls.objects += len(arguments[0]) if isinstance(arguments[0], dict) else 1
        return method(*arguments)

    return call


# Peers


@dataclass(frozen=True)
class Delta:
    """Appends to one table of deltalake on the local disk."""

    folder: Path
    retries: int | None = None
    """As many as it does by itself, where None."""

    @property
    def name(self) -> str:
        """What the table of results calls it."""
        return "deltalake" if self.retries is None else "deltalake, raised"

    def prepare(self) -> None:
        """Make the table."""
        from deltalake import DeltaTable  # noqa: PLC0415  installed by scripts/setup-bench

        DeltaTable.create(self.folder, schema=rows_of(0, 0).schema)

    def open(self) -> Callable[[int], Committer]:
        """Import the library."""
        from deltalake import CommitProperties, write_deltalake  # noqa: PLC0415

        properties = None if self.retries is None else CommitProperties(max_commit_retries=self.retries)
        return lambda number: Appender(
            number,
            lambda rows: write_deltalake(self.folder, rows, mode="append", commit_properties=properties),
        )

    def check(self, acknowledged: Sequence[tuple[str, str]]) -> None:
        """The table has the rows of each turn, and perhaps of some that failed."""
        from deltalake import DeltaTable  # noqa: PLC0415

        files = DeltaTable(self.folder).file_uris()
        rows = sum(pq.read_metadata(unquote(uri.removeprefix("file://"))).num_rows for uri in files)
        assert rows >= ROWS * len(acknowledged), f"{rows} rows of {len(acknowledged)} appends"


@dataclass(frozen=True)
class Iceberg:
    """Appends to one table of pyiceberg, whose catalog is in SQLite."""

    folder: Path
    retries: int | None = None

    @property
    def name(self) -> str:
        """What the table of results calls it."""
        return "pyiceberg" if self.retries is None else "pyiceberg, raised"

    def prepare(self) -> None:
        """Make the catalog and the table."""
        self.folder.mkdir()
        catalog = self._catalog()
        catalog.create_namespace("n")
        # Its pauses grow to a minute by default: with many retries, a writer would be asleep most of the time.
        raised = {"commit.retry.num-retries": str(self.retries), "commit.retry.max-wait-ms": "1000"}
        catalog.create_table(
            "n.t", schema=rows_of(0, 0).schema, properties=raised if self.retries is not None else {}
        )

    def open(self) -> Callable[[int], Committer]:
        """Import the library, and let it tell of its retries by the table of results only."""
        logging.getLogger("pyiceberg").setLevel(logging.ERROR)
        catalog = self._catalog()
        return lambda number: Appender(number, lambda rows: catalog.load_table("n.t").append(rows))

    def check(self, acknowledged: Sequence[tuple[str, str]]) -> None:
        """The table has the rows of each turn, and perhaps of some that failed."""
        snapshot = self._catalog().load_table("n.t").current_snapshot()
        rows = int(snapshot.summary["total-records"]) if snapshot else 0
        assert rows >= ROWS * len(acknowledged), f"{rows} rows of {len(acknowledged)} appends"

    def _catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415

        return SqlCatalog("c", uri=f"sqlite:///{self.folder}/catalog.db", warehouse=self.folder.as_uri())


class Appender:
    """Appends by a function of its library."""

    def __init__(self, number: int, append: Callable[[pa.Table], object]) -> None:
        self._number, self._append = number, append

    def commit(self, turn: int) -> str:
        """Append the rows."""
        self._append(rows_of(self._number, turn))
        return ""

    def operations(self) -> tuple[float, float]:
        """Return nothing: nobody counts."""
        return 0.0, 0.0


def peers(folder: Path) -> list[Contestant]:
    """Return both peers, as they are (15 and 4 retries) and with raised retries, in new places below a folder."""
    place = Path(tempfile.mkdtemp(dir=folder))
    return [
        Delta(place / "delta"),
        Delta(place / "delta-raised", 1_000),
        Iceberg(place / "iceberg"),
        Iceberg(place / "iceberg-raised", 100),
    ]
