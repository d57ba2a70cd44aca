"""The tracking store on both databases: atomic groups with separate results, generations, and the outbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard
from opentelemetry.proto.trace.v1 import trace_pb2 as pb
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from sqlalchemy import Connection, event, func, insert, select, text, update

from tests.patience import HANG_S, wait_until
from tests.strategies import span_facts
from tests.tracking.requests import payload, request, span_numbers, trace_id
from tracelake import limits
from tracelake._errors import BackPressureError, DamageError, StorageError, UsageError
from tracelake.otlp.framing import Payload, Reading
from tracelake.otlp.partition import rows_of, take_apart
from tracelake.tables.builtin import summed
from tracelake.tracking import database as databases
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import migrate
from tracelake.tracking.outbox import Outbox, Uncommitted
from tracelake.tracking.schema import (
    ARCHIVE_REPO,
    INCOMPLETE,
    TRACKING_STORE,
    outbox,
    span_checksum,
    spans,
    trace_info,
    trace_parts,
)
from tracelake.tracking.store import TracedRequest, TrackingStore, unpacked
from tracelake.tracking.verify import check_store


def archive(store: TrackingStore, number: int, location: str) -> None:
    """Archive a trace, as a pass does at its end."""
    with store.database.writing() as connection:
        of_trace = (trace_info.c.lake == store.lake, trace_info.c.trace_id == trace_id(number))
        values = {"spans_location": ARCHIVE_REPO, "archive_location": location}
        assert connection.execute(update(trace_info).where(*of_trace).values(values)).rowcount == 1
        connection.execute(trace_parts.delete().where(trace_parts.c.trace_id == trace_id(number)))


def requests_of(store: TrackingStore, directory: Path) -> list[bytes]:
    """Return the payloads of all requests in the outbox, in order."""
    rows, payloads = Outbox(store), []
    for row in rows.waiting():
        segment = rows.read(row.sequence)
        assert segment is not None
        assert len(segment) == row.size_bytes
        (directory / "segment").write_bytes(segment)
        payloads += [item.data for item in Reading(str(directory / "segment")) if isinstance(item, Payload)]
    return payloads


def count(store: TrackingStore, table: object) -> int:
    """Count the rows of a table, of all lakes."""
    with store.database.reading() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())  # type: ignore[arg-type]


def test_a_group_is_stored_whole(store: TrackingStore, tmp_path: Path) -> None:
    """Requests share one row of the outbox, unchanged; each trace has its columns and its complete payload."""
    first, second = request((1, 1), (1, 2), (2, 1), text="hello"), request((1, 3))
    assert store.write([first, second]) == [None, None]
    assert requests_of(store, tmp_path) == [first.payload, second.payload]
    assert len(Outbox(store).waiting()) == 1
    stored = store.traces([trace_id(1), trace_id(2), trace_id(9)])
    assert {key: span_numbers(trace.data) for key, trace in stored.items()} == {
        trace_id(1): [1, 2, 3],
        trace_id(2): [1],
    }
    one = stored[trace_id(1)]
    assert (one.generation, one.is_hot, one.info["state"], one.info["name"]) == (1, True, "OK", "span 1")
    assert (one.info["start_ns"], one.info["end_ns"], one.info["service"]) == (1_001, 2_000, "checkout")
    assert one.info["request_preview"] == "hello"
    whole = take_apart("protobuf", payload((2, 1), text="hello"))[trace_id(2)].data
    assert span_facts(TracesData.FromString(stored[trace_id(2)].data)) == span_facts(
        TracesData.FromString(whole)
    )
    with store.database.reading() as connection:
        rows = connection.execute(select(spans).order_by(spans.c.trace_id, spans.c.span_id)).all()
    assert [(row.trace_id, row.name, row.service, row.kind) for row in rows] == [
        (trace_id(trace), f"span {span}", "checkout", "UNSPECIFIED")
        for trace, span in ((1, 1), (1, 2), (1, 3), (2, 1))
    ]


def test_w11_workspaces_have_columns_of_their_own(store: TrackingStore) -> None:
    """With the same ids in two workspaces, in one group and in two, filters find the span of each (W11)."""

    def check() -> None:
        with store.database.writing() as connection:
            for table in (spans, trace_parts, trace_info, outbox):
                connection.execute(table.delete())
        claims = [request((1, 1), workspace=name, end_ns=end) for name, end in (("a", 5), ("b", 9))]
        store.write(claims)
        store.write(claims[1:])
        with store.database.reading() as connection:
            rows = connection.execute(select(spans.c.workspace, spans.c.end_ns).order_by(spans.c.workspace))
            assert [tuple(row) for row in rows] == [("a", 5), ("b", 9), ("b", 9)]
        assert list(check_store(store, ())) == []

    check()


def test_w6_the_row_of_a_trace_is_told_its_own_spans(store: TrackingStore) -> None:
    """For any workspace that is first in a group, the row contains its own spans; one group is one generation (W6)."""
    numbers = iter(range(1, 100))

    def check() -> None:
        for turned in (False, True):
            number = next(numbers)
            store.write([request((number, 2), workspace="a")])
            group = [
                request((number, 3), workspace="b", end_ns=99_000),
                request((number, 1), workspace="a", end_ns=9_000, text="ours"),
                request((number, 1), workspace="c", text="theirs"),
            ]
            store.write(group[::-1] if turned else group)
            trace = store.traces([trace_id(number)])[trace_id(number)]
            told = {
                key: trace.info[key] for key in ("workspace", "name", "state", "end_ns", "request_preview")
            }
            assert told == {
                "workspace": "a",
                "name": "span 1",
                "state": "OK",
                "end_ns": 9_000,
                "request_preview": "ours",
            }
            assert trace.generation == 2
            store.write([request((number, 1), workspace=name, text="theirs") for name in "bc"])
            assert store.infos([trace_id(number)])[trace_id(number)]["request_preview"] == "ours"

    check()


def test_w11_columns_of_a_workspace_that_are_lost_are_told(store: TrackingStore) -> None:
    """`verify` notices missing columns of each workspace, also if another has the same ids, or a long name (W11)."""
    store.write([request((1, 1), workspace=name) for name in ("a", "b" * 600)])
    assert list(check_store(store, ())) == []

    def check() -> None:
        (found,) = check_store(store, ())
        assert "other workspaces" in found.detail

    with store.database.writing() as connection:
        connection.execute(spans.delete().where(spans.c.workspace == "a"))
    check()


def test_a3_every_write_advances_the_generation(store: TrackingStore) -> None:
    """A child before its root, the root, and the same once more make three generations of one trace (A3)."""
    for number, (generation, state, name) in zip(
        (2, 1, 1), ((1, "IN_PROGRESS", None), (2, "OK", "span 1"), (3, "OK", "span 1")), strict=True
    ):
        store.write([request((1, number))])
        trace = store.traces([trace_id(1)])[trace_id(1)]
        assert (trace.generation, trace.info["state"], trace.info["name"]) == (generation, state, name)
    assert span_numbers(store.traces([trace_id(1)])[trace_id(1)].data) == [1, 1, 2]


def test_a2_a15_spans_of_an_archived_trace_are_refused_alone(store: TrackingStore, tmp_path: Path) -> None:
    """With a separate archive, 3 new traces are stored and the archived one is refused (A2, A15)."""
    store.write([request((4, 1))])
    archive(store, 4, "file:///archive/4")
    Outbox(store).trim([row.sequence for row in Outbox(store).waiting()])
    mixed, other = request((1, 1), (2, 1), (3, 1), (4, 2), (4, 3)), request((5, 1))
    answers = store.write([mixed, other])
    assert answers[1] is None
    assert answers[0] is not None
    assert answers[0].spans == 2
    assert "restore" in answers[0].reason
    assert sorted(store.traces([trace_id(n) for n in range(1, 6)])) == [trace_id(n) for n in range(1, 6)]
    assert store.traces([trace_id(4)])[trace_id(4)].data == b""
    left = b"".join(requests_of(store, tmp_path))
    assert sorted(take_apart("protobuf", left)) == [trace_id(n) for n in (1, 2, 3, 5)]
    rows = len(Outbox(store).waiting())
    assert [answer and answer.spans for answer in store.write([request((4, 5))])] == [1]
    assert len(Outbox(store).waiting()) == rows, "nothing is left of it, so nothing goes out"


def test_late_spans_of_the_lakes_own_archive_are_taken(store: TrackingStore, tmp_path: Path) -> None:
    """In layout `lake` a late span is readable at once, is committed, and leaves the store once the tables have it
    (A18)."""
    store.write([request((1, 1))])
    rows = Outbox(store)
    rows.trim([row.sequence for row in rows.waiting()])
    archive(store, 1, "lake:abc@7")
    late = request((1, 2))
    assert store.write([late]) == [None]
    trace = store.traces([trace_id(1)])[trace_id(1)]
    assert (trace.is_hot, trace.generation, span_numbers(trace.data)) == (False, 1, [2])
    assert requests_of(store, tmp_path) == [late.payload]
    assert [part[0] for part in Uncommitted(store).listed()[0]] == [trace_id(1)]
    rows.trim([row.sequence for row in rows.waiting()])
    assert store.traces([trace_id(1)])[trace_id(1)].data == b""
    assert count(store, spans) == 2, "columns stay"


def test_late_spans_stay_with_who_is_restored_meanwhile(store: TrackingStore) -> None:
    """A trim waits for a restore that needs the late spans of its trace, and keeps them for it (A18)."""
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer at a time")
    store.write([request((1, 1))])
    rows = Outbox(store)
    rows.trim([row.sequence for row in rows.waiting()])
    archive(store, 1, "lake:abc@7")
    store.write([request((1, 2))])
    late = [row.sequence for row in rows.waiting()]
    with ThreadPoolExecutor(1) as pool:
        with store.database.writing() as connection:
            connection.execute(
                update(trace_info).values(spans_location=TRACKING_STORE, archive_location=None)
            )
            trimming = pool.submit(rows.trim, late)
            wait_until(lambda: trimming.done() or is_waiting(store), "the trim neither waits nor ends")
        trimming.result(HANG_S)
    assert span_numbers(store.traces([trace_id(1)])[trace_id(1)].data) == [2]
    assert rows.waiting() == []


def is_waiting(store: TrackingStore) -> bool:
    """Return whether a connection of this database waits for a lock."""
    query = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    with store.database.engine.connect() as connection:
        return bool(connection.execute(query).scalar())


def test_what_is_given_up_is_told_by_its_traces(store: TrackingStore) -> None:
    """Traces of a row that the tables never get are marked, once: a user who deletes the mark has the last word."""
    store.write([request((1, 1), (2, 1))])
    store.write([request((2, 2), (3, 1))])
    rows = Outbox(store)
    given_up, kept = (row.sequence for row in rows.waiting())
    rows.give_up([given_up])
    assert [row.sequence for row in rows.waiting()] == [kept]

    def marked() -> list[str]:
        stored = store.traces([trace_id(number) for number in (1, 2, 3)])
        return [each for each, trace in stored.items() if trace.info["archival_failure"] == INCOMPLETE]

    assert marked() == [trace_id(1), trace_id(2)]
    assert span_numbers(store.traces([trace_id(1)])[trace_id(1)].data) == [1], "it may be all that there is"
    with store.database.writing() as connection:
        connection.execute(update(trace_info).values(archival_failure=None))
    rows.give_up([given_up])
    assert marked() == []


def test_lakes_share_a_database(store: TrackingStore) -> None:
    """Traces with one id in two lakes are two traces, and each lake has a separate outbox."""
    other = TrackingStore(store.database, "lake-b")
    again = TrackingStore(store.database, "lake-a")
    assert store.lake == again.lake != other.lake
    store.write([request((1, 1))])
    other.write([request((1, 2))])
    assert span_numbers(store.traces([trace_id(1)])[trace_id(1)].data) == [1]
    assert span_numbers(other.traces([trace_id(1)])[trace_id(1)].data) == [2]
    own = [row.sequence for row in Outbox(store).waiting()]
    Outbox(other).trim(own)
    assert [row.sequence for row in Outbox(store).waiting()] == own


def test_numbers_of_the_outbox_are_never_given_again(store: TrackingStore) -> None:
    """The journal identifies a row by its number: the number of a trimmed row is never reused."""
    rows = Outbox(store)
    store.write([request((1, 1))])
    (first,) = rows.waiting()
    rows.trim([first.sequence])
    store.write([request((2, 1))])
    (second,) = rows.waiting()
    assert second.sequence > first.sequence
    assert (rows.read(first.sequence), rows.size_bytes(first.sequence)) == (None, None)
    assert rows.totals() == (1, second.size_bytes, second.received_ns)


def test_o3_a_number_that_commits_late_is_not_missed(store: TrackingStore) -> None:
    """PostgreSQL may commit a lower number after a higher one was read; a number rolled back is not waited for
    (O3)."""
    rows = Outbox(store)
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer at a time: numbers are committed in their order")
    row = {"lake": store.lake, "payload": b"late", "size_bytes": 4, "received_ns": 1}
    with store.database.writing() as connection:
        low = connection.execute(insert(outbox).returning(outbox.c.sequence), row).scalar_one()
        with store.database.engine.connect() as other:
            other.execute(insert(outbox), row)
            other.rollback()
        store.write([request((1, 1))])
        (taken,) = rows.waiting()
        assert taken.sequence > low + 1, "the gap and the one under way are below it"
    rows.trim([taken.sequence])
    assert [late.sequence for late in rows.waiting()] == [low]
    assert rows.read(low) == b"late"


def test_nothing_is_half_written(store: TrackingStore) -> None:
    """An error after any statement of a write leaves nothing of it, and the same requests can be sent again (O4)."""
    group = [request((1, 1), (2, 1)), request((1, 2))]
    carry_out = databases._carry_out
    for failing in range(1, 6 if store.database.is_sqlite else 5):  # there BEGIN is Tracelake's own statement
        statements = iter(range(1, 100))

        def fail(
            connection: Connection,
            do: Callable[[Any], object],
            failing: int = failing,
            statements: Iterator[int] = statements,
        ) -> object:
            def done(driver: object) -> object:
                result = do(driver)
                if next(statements) == failing:
                    raise sqlite3.OperationalError("database or disk is full")
                return result

            return carry_out(connection, done)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(databases, "_carry_out", fail)
            with pytest.raises((StorageError, sqlite3.OperationalError)):
                store.write(group)
        assert next(statements) == failing + 1, "that statement was carried out"
        for table in (trace_info, trace_parts, spans, outbox):
            assert count(store, table) == 0
    assert store.write(group) == [None, None]
    assert span_numbers(store.traces([trace_id(1)])[trace_id(1)].data) == [1, 2]


def test_hostile_text_is_kept(store: TrackingStore) -> None:
    """NUL, long names and other text cause no failure: columns contain as much as fits, the payload all of it."""
    body = payload((1, 1), text="\0" * 5_000)
    body = body.replace(b"span 1", b"\0\0\0\0\0\0")
    long = payload((2, 1)).replace(b"a=b", b"a=b")
    data = take_apart("protobuf", body)
    assert store.write(
        [TracedRequest("protobuf", body, data), TracedRequest("protobuf", long, take_apart("protobuf", long))]
    )
    trace = store.traces([trace_id(1)])[trace_id(1)]
    assert trace.info["name"] == "\ufffd" * 6
    assert trace.info["request_preview"] == "\ufffd" * limits.TRACKING_PREVIEW_MAX_CHARS
    assert trace.data == body


def test_a_full_outbox_pushes_back(store: TrackingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit of pending rows writes are refused until the pipeline has committed some."""
    monkeypatch.setattr(limits, "OUTBOX_ROWS_MAX", 2)
    for number in (1, 2):
        store.write([request((number, 1))])
    with pytest.raises(BackPressureError, match="2 rows of the outbox wait"):
        store.write([request((3, 1))])
    rows = Outbox(store)
    rows.trim([rows.waiting()[0].sequence])
    assert store.write([request((3, 1))]) == [None]


def test_a_damaged_part_is_an_error(store: TrackingStore) -> None:
    """A flipped byte of a payload is an error that names the trace, never an empty one (A14)."""
    store.write([request((1, 1))])
    with store.database.writing() as connection:
        stored = connection.execute(select(trace_parts.c.payload)).scalar_one()
        flipped = stored[:20] + bytes([stored[20] ^ 1]) + stored[21:]
        connection.execute(update(trace_parts).values(payload=flipped))
    with pytest.raises(DamageError, match=trace_id(1)):
        store.traces([trace_id(1)])


def check_flipped_rows() -> None:
    """Check reads of parts with a damaged column other than the payload, as in a file without checksums."""
    data = payload((1, 1))
    packed = zstandard.compress(data)
    assert unpacked(trace_id(1), packed, len(data)) == data
    odd: list[tuple[Any, Any, Any]] = [
        (trace_id(1), None, len(data)),
        (trace_id(1), packed + b"x", len(data)),
        (trace_id(1), packed, None),
        (trace_id(1), "text", len(data)),
        (trace_id(3), packed, len(data)),
        (trace_id(1)[:-1] + "g", packed, len(data)),
        (trace_id(1).encode(), packed, len(data)),
    ]
    for part in odd:
        with pytest.raises(DamageError, match=trace_id(1)[:-1]):
            unpacked(*part)


def test_a_part_whose_row_is_damaged_is_an_error() -> None:
    """No read accepts a value that became null, or spans of another trace, as this trace's data."""
    check_flipped_rows()


def test_beginnings_of_ids(store: TrackingStore) -> None:
    """A prefix of an id finds the trace."""
    store.write([request((1, 1), (2, 1), (255, 1))])
    assert store.ids_that_begin(trace_id(1)[:31], 2) == [trace_id(1), trace_id(2)]
    assert store.ids_that_begin(trace_id(255)[:31], 2) == [trace_id(255)]


def test_urls_that_name_no_database() -> None:
    """Another scheme, or a path that is not absolute, is refused."""
    for url in ("mysql://host/db", "sqlite://relative", "sqlite:///"):
        with pytest.raises(UsageError):
            TrackingDatabase(url)


def test_a_database_that_is_away(tmp_path: Path) -> None:
    """A file that is not a database, and an unreachable server, are errors of the store."""
    (tmp_path / "tracking.db").write_bytes(b"no database at all" * 100)
    for url in (f"sqlite://{tmp_path}/tracking.db", "postgresql://nobody@127.0.0.1:1/none"):
        with closing(TrackingDatabase(url)) as database, pytest.raises(StorageError):
            migrate(database)


def test_a13_nobody_writes_between_check_and_clearing(store: TrackingStore) -> None:
    """Between a pass's check of a generation and its clearing, another process's write waits for the end (A13)."""
    store.write([request((1, 1))])
    if not store.database.is_sqlite:
        pytest.skip("PostgreSQL locks rows by the statements that change them")
    of_trace = (trace_info.c.lake == store.lake, trace_info.c.trace_id == trace_id(1))
    with closing(TrackingDatabase(f"sqlite://{store.database.name}")) as other, ThreadPoolExecutor(1) as pool:
        late = TrackingStore(other, "lake-a")
        with store.database.writing() as connection:
            generation = connection.execute(
                select(trace_info.c.db_payload_generation).where(*of_trace)
            ).scalar_one()
            writing = pool.submit(late.write, [request((1, 2))])
            with suppress(TimeoutError):
                # long enough for a write that does not wait; one that waits may take any time
                writing.result(1.0)
            assert not writing.done()
            archived = {"spans_location": ARCHIVE_REPO, "archive_location": "file:///archive"}
            same = trace_info.c.db_payload_generation == generation
            assert (
                connection.execute(update(trace_info).where(*of_trace, same).values(archived)).rowcount == 1
            )
            connection.execute(trace_parts.delete())
        (answer,) = writing.result()
        assert answer is not None
        assert answer.spans == 1


def test_what_waits_is_found_by_its_numbers(store: TrackingStore) -> None:
    """Neither a trim nor a list of pending rows scans all hot rows: SQLite finds parts by their rows."""
    if not store.database.is_sqlite:
        pytest.skip("PostgreSQL plans by its statistics, which a table of one row does not have")
    store.write([request((1, 1))])
    statements: list[tuple[str, object]] = []

    def note(
        _connection: object, _cursor: object, statement: str, parameters: object, *_rest: object
    ) -> None:
        if "tracelake_trace_parts" in statement:
            statements.append((statement, parameters))

    event.listen(store.database.engine, "before_cursor_execute", note)
    assert [part[0] for part in Uncommitted(store).listed()[0]] == [trace_id(1)]
    Outbox(store).trim([row.sequence for row in Outbox(store).waiting()])
    event.remove(store.database.engine, "before_cursor_execute", note)
    assert len(statements) == 3
    looked_up = (
        "USING COVERING INDEX tracelake_trace_parts_by_sequence (sequence=?)",
        "(lake=? AND trace_id=?)",
        "(lake=? AND trace_id=? AND sequence=?)",
    )
    with closing(sqlite3.connect(store.database.name)) as connection:
        for statement, parameters in statements:
            steps = connection.execute(f"explain query plan {statement}", parameters).fetchall()  # type: ignore[arg-type]
            (of_parts,) = [step[3] for step in steps if "tracelake_trace_parts" in step[3]]
            assert of_parts.endswith(looked_up), of_parts


def check_driver(store: TrackingStore) -> None:
    refusing = "CREATE TRIGGER refusing BEFORE INSERT ON tracelake_outbox BEGIN SELECT RAISE(ABORT, 'not today'); END"
    with closing(sqlite3.connect(store.database.name, isolation_level=None)) as other:
        other.execute(refusing)
        with pytest.raises(UsageError, match="not today"):
            store.write([request((1, 1))])
        other.execute("DROP TRIGGER refusing")
    assert store.traces([trace_id(1)]) == {}
    store.write([request((1, 1))])


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_what_the_driver_says_of_a_statement_is_an_error_of_ours(store: TrackingStore) -> None:
    """A refused write raises the database's error and stores nothing, and the next write succeeds (O4)."""
    check_driver(store)


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_a_busy_file_is_not_a_damaged_one(store: TrackingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify reports that it cannot read a file that is locked or cannot be opened, and names no damage."""
    monkeypatch.setattr(limits, "TRACKING_BUSY_TIMEOUT_S", 0.01)
    file = Path(store.database.name)
    store.close()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="locked"):
            list(check_store(store, ()))
        other.execute("ROLLBACK")
    assert list(check_store(store, ())) == []
    store.close()
    file.rename(file.with_name("elsewhere"))
    file.mkdir()
    with pytest.raises(StorageError, match="unable to open"):
        list(check_store(store, ()))


def both_sides() -> TracedRequest:
    """Return a request with a client and a server span that share one id."""
    data = pb.TracesData()
    scope = data.resource_spans.add().scope_spans.add()
    for kind in (pb.Span.SPAN_KIND_CLIENT, pb.Span.SPAN_KIND_SERVER):
        scope.spans.add(trace_id=bytes.fromhex(trace_id(1)), span_id=(1).to_bytes(8), kind=kind)
    body = data.SerializeToString()
    return TracedRequest("protobuf", body, take_apart("protobuf", body))


def test_both_sides_of_a_call_have_columns(store: TrackingStore) -> None:
    """A client and a server span with one id in one request have a row each; a repeat is counted once."""
    store.write([both_sides()])
    store.write([both_sides()])
    assert Uncommitted(store).received_spans(trace_id(1)) == 2
    with store.database.reading() as connection:
        kinds = (
            connection.execute(select(spans.c.kind).order_by(spans.c.sequence, spans.c.kind)).scalars().all()
        )
    assert kinds == ["CLIENT", "SERVER"] * 2
    assert list(check_store(store, ())) == []


def test_columns_of_sides_are_verified(store: TrackingStore) -> None:
    """Columns of one side are enough, as before revision 0007. If all are missing, or are of an absent side, that
    is a finding."""
    store.write([both_sides()])
    with store.database.writing() as connection:
        connection.execute(spans.delete().where(spans.c.kind == "SERVER"))
    assert list(check_store(store, ())) == []
    with store.database.writing() as connection:
        connection.execute(spans.delete())
    (found,) = check_store(store, ())
    assert "other spans" in found.detail


def test_columns_of_an_absent_side_are_found(store: TrackingStore) -> None:
    """A kind that changes to one of the other side differs from the payload."""
    store.write([request((1, 1))])
    with store.database.writing() as connection:
        (*row, _) = connection.execute(select(spans)).one()
        row[list(spans.c).index(spans.c.kind)] = "SERVER"
        connection.execute(update(spans).values(kind="SERVER", checksum=span_checksum(row)))
    (found,) = check_store(store, ())
    assert "lacks a client or a server span" in found.detail


def test_the_session_of_a_trace_is_the_first_that_is_not_empty(store: TrackingStore) -> None:
    """A span with an empty session or user does not hide the session or user of a later span of its trace."""
    data = pb.TracesData()
    scope = data.resource_spans.add().scope_spans.add()
    for number, value in ((1, ""), (2, "real"), (3, "later")):
        span = scope.spans.add(trace_id=bytes.fromhex(trace_id(1)), span_id=number.to_bytes(8))
        span.start_time_unix_nano = number
        for name in ("session.id", "user.id"):
            span.attributes.add(key=name).value.string_value = value
    body = data.SerializeToString()
    store.write([TracedRequest("protobuf", body, take_apart("protobuf", body))])
    info = store.infos([trace_id(1)])[trace_id(1)]
    assert (info["session_id"], info["user_id"]) == ("real", "real")
    summary = summed(rows_of(body).take().to_pylist())
    assert (summary["session_id"], summary["user_id"]) == ("real", "real")
