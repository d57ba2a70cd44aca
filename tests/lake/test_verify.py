"""`verify` names exactly the damage and continues; reading damaged data is an error, and never gives wrong rows."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tracelake
from tests.altered import altered, sealed
from tests.patience import HANG_S
from tests.pipeline.spans import AGENTS, a_line, a_span
from tracelake import DamageError, Finding
from tracelake.journal.store import record_key
from tracelake.tasks.runners import InProcess

PROGRAM = Path(sys.executable).with_name("tracelake")
BRANCH = ("branches", "main")
SPANS_STATE = ("shards", "spans")
TRACES_STATE = ("shards", "traces")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a lake of three transactions, with replaced spans, in two buckets."""
    folder = tmp_path_factory.mktemp("whole")
    batches = [
        [a_span(trace, span, end=0, note="apple") for trace in range(6) for span in range(3)],
        [a_span(trace, 0, end=20, note="pear") for trace in range(6)],
        [a_span(trace, 0, note="cherry") for trace in range(10, 16)],
    ]
    with tracelake.init(folder / "lake", buckets=2) as lake:
        for number, spans in enumerate(batches):
            file = folder / f"{number}.jsonl"
            file.write_bytes(a_line(*spans))
            lake.ingest(file, runner=InProcess())
        assert lake.verify().ok
    return folder / "lake"


@pytest.fixture
def root(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the lake to damage, with empty caches."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(whole, tmp_path / "lake"))


def flip(path: Path, position: float = 0.5) -> None:
    """Flip one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[int(position * (len(data) - 1))] ^= 1
    path.write_bytes(data)


def records(root: Path, change: str, *values: object) -> None:
    """Change the records of the metadata by SQL."""
    with contextlib.closing(sqlite3.connect(root / "metadata.db")) as db:
        assert db.execute(change, values).rowcount > 0
        db.commit()


def scoped(root: Path, partition: str) -> bytes:
    """Return the name of a partition of the lake in its metadata."""
    return f"{json.loads((root / 'lake.json').read_text())['id']}/{partition}".encode()


def forget(root: Path, partition: str, key: str) -> None:
    """Delete one record."""
    change = "delete from records where partition = ? and key = ?"
    records(root, change, scoped(root, partition), key.encode())


def place(root: Path, partition: str, key: str) -> str:
    """Return the value that the location contributes to a record's checksum."""
    return f"{scoped(root, partition).decode()}\0{key}"


def read_record(root: Path, partition: str, key: str) -> bytes:
    """Return one record."""
    query = "select value from records where partition = ? and key = ?"
    with contextlib.closing(sqlite3.connect(root / "metadata.db")) as db:
        (value,) = db.execute(query, (scoped(root, partition), key.encode())).fetchone()
    return bytes(value)


def overwrite(root: Path, partition: str, key: str, old: bytes, new: bytes) -> None:
    """Replace bytes in one record, and its checksum."""
    value = altered(read_record(root, partition, key), old, new, place(root, partition, key))
    # In the form of an earlier release: without a checksum of the row.
    change = (
        "update records set value = ?, version = lower(hex(randomblob(16))) where partition = ? and key = ?"
    )
    records(root, change, value, scoped(root, partition), key.encode())


def first(root: Path, pattern: str) -> str:
    """Return the first object that matches, as a path in the lake."""
    return sorted(root.glob(pattern))[0].relative_to(root).as_posix()


def findings(root: Path) -> list[tuple[str, str, str]]:
    """Verify, and return kind, description and path of each finding."""
    with tracelake.open(root) as lake:
        report = lake.verify()
    assert report.ok is (not report.findings)
    return [(finding.kind, finding.what, finding.path) for finding in report.findings]


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("shards/spans/parts/*/*.parquet", "part"),
        ("shards/traces/parts/*/*.parquet", "part"),
        ("shards/spans/batches/*/*.json", "batch"),
        ("shards/traces/batches/*/*.json", "batch"),
        ("search/spans/parts/*/*.pack", "index part"),
        ("search/spans/manifests/*-0000000002.json", "manifest"),
        ("search/spans/manifests/*-0000000000.json", "manifest"),
        ("versions/commits/*.json", "commit"),
    ],
)
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "remove"])
def test_a_damaged_object_is_named(root: Path, pattern: str, what: str, damage: str) -> None:
    """Each kind of object, with a bit flipped, cut short, emptied or missing, is named, and nothing else is."""
    path = first(root, pattern)
    file = root / path
    if damage == "flip":
        flip(file)
    elif damage == "remove":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: -5 if damage == "cut" else 0])
    assert findings(root) == [("missing" if damage == "remove" else "damaged", what, path)]


@pytest.mark.parametrize("kind", ["metaranges", "ranges"])
def test_a_damaged_tree_of_a_commit_is_named(root: Path, kind: str) -> None:
    """The finding of a commit names its damaged objects, and earlier commits are read."""
    path = first(root, f"versions/{kind}/*.json")
    flip(root / path)
    with tracelake.open(root) as lake:
        (finding,) = lake.verify().findings
        assert (finding.kind, finding.what) == ("damaged", "commit")
        assert finding.path.removeprefix("versions/commits/").removesuffix(".json") in {
            c.id for c in lake.log()
        }
        assert path in finding.detail


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            lambda root: forget(root, "journal/main", record_key(1, 0)),
            [("damaged", "journal", "transaction 1")],
        ),
        (
            lambda root: forget(root, "journal/main", record_key(1, 1)),
            [("missing", "journal", "transaction 1")],
        ),
        (
            lambda root: overwrite(root, "journal/main", record_key(1, 0), b'"records":1', b'"records":2'),
            [("damaged", "journal", "transaction 1")],
        ),
        (
            lambda root: overwrite(root, "journal/main", record_key(2, 0), b'"spans":6', b'"spans":7'),
            [("mismatch", "journal", "transaction 2")],
        ),
        (
            lambda root: overwrite(root, "journal/main", record_key(2, 0), b"{", b"["),
            [("damaged", "journal", "transaction 2")],
        ),
        (lambda root: forget(root, *SPANS_STATE), [("missing", "table", "spans")]),
        (lambda root: forget(root, *TRACES_STATE), [("missing", "table", "traces")]),
        (
            lambda root: overwrite(root, *SPANS_STATE, b'"upper":3', b'"upper":"3"'),
            [("damaged", "table", "spans")],
        ),
        (lambda root: forget(root, *BRANCH), [("damaged", "commit", "branch main")]),
        (lambda root: overwrite(root, *BRANCH, b"{", b"["), [("damaged", "commit", "branch main")]),
    ],
)
def test_a_damaged_record_is_named(
    root: Path, damage: Callable[[Path], None], expected: list[tuple[str, str, str]]
) -> None:
    """Each kind of record in the metadata, altered or missing, is named, and nothing else is."""
    damage(root)
    assert findings(root) == expected


def test_a_batch_that_the_state_forgot_is_named(root: Path) -> None:
    """A state without one of its batches contradicts the commit of that transaction."""
    state = json.loads(read_record(root, *SPANS_STATE))
    del state["batches"][1]
    del state["xxh3"]
    # In the form of an earlier release: without a checksum of the row.
    change = (
        "update records set value = ?, version = lower(hex(randomblob(16))) where partition = ? and key = ?"
    )
    value = sealed(json.dumps(state).encode(), place(root, *SPANS_STATE))
    records(root, change, value, scoped(root, SPANS_STATE[0]), SPANS_STATE[1].encode())
    assert ("missing", "batch", "transaction 1") in findings(root)


def test_lost_metadata_is_noticed(root: Path, tmp_path: Path) -> None:
    """A lake with lost metadata is not treated as empty, and no new history is started over it."""
    records(root, "delete from records where partition != ?", b"lakes")
    found = findings(root)
    assert {
        ("missing", "journal", "transactions 0 to 2"),
        ("damaged", "commit", "branch main"),
        ("missing", "table", "spans"),
    } < set(found)
    (tmp_path / "more.jsonl").write_bytes(a_line(a_span(50, 0)))
    with tracelake.open(root) as lake, pytest.raises(DamageError, match="Restore the metadata"):
        lake.ingest(tmp_path / "more.jsonl", runner=InProcess())
    for file in root.glob("metadata.db*"):
        file.unlink()
    with pytest.raises(DamageError, match=r"metadata\.db is gone"):
        tracelake.open(root)


def test_several_findings_in_one_run(root: Path) -> None:
    """`verify` continues after a finding, and names all of them."""
    part, pack = first(root, "shards/traces/parts/*/*.parquet"), first(root, "search/spans/parts/*/*.pack")
    batch, commit = first(root, "shards/spans/batches/*/*.json"), first(root, "versions/metaranges/*.json")
    flip(root / part)
    (root / pack).unlink()
    flip(root / batch)
    flip(root / commit)
    forget(root, "journal/main", record_key(1, 1))
    found = findings(root)
    assert {
        ("damaged", "part", part),
        ("missing", "index part", pack),
        ("damaged", "batch", batch),
        ("missing", "journal", "transaction 1"),
    } < set(found)
    assert [what for _, what, _ in found].count("commit") == 1
    assert len(found) == 5


def test_the_command_line_names_it_and_exits_with_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tracelake verify` prints the finding and exits with 1, with `--json` too; on an intact lake with 0."""
    monkeypatch.setenv("COLUMNS", "300")
    command = [str(PROGRAM), "verify", "--lake", str(root)]
    fine = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (fine.returncode, "The lake is intact." in fine.stdout) == (0, True)
    part = first(root, "shards/spans/parts/*/*.parquet")
    flip(root / part)
    plain = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert plain.returncode == 1
    assert part in plain.stdout
    as_json = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    report = json.loads(as_json.stdout)
    assert (as_json.returncode, report["ok"]) == (1, False)
    (finding,) = report["findings"]
    assert Finding(**finding).path == part


def readers(root: Path) -> Iterator[Callable[[], object]]:
    """Yield the ways to read rows of both tables, each with a reopened lake."""
    for read in (
        lambda lake: lake.table("spans").to_arrow(),
        lambda lake: lake.table("spans").to_polars(),
        lambda lake: lake.table("spans").to_duckdb().fetchall(),
        lambda lake: lake.table("spans").content_hash(),
        lambda lake: lake.sql("select * from spans"),
        lambda lake: lake.sql('select * from "SPANS"'),
        lambda lake: [lake.trace(f"{trace + 1:032x}") for trace in range(6)],
        lambda lake: lake.search("*"),
    ):

        def run(read: Callable[[tracelake.Lake], object] = read) -> object:
            with tracelake.open(root) as lake:
                return read(lake)

        yield run


@pytest.mark.parametrize(
    "pattern", ["shards/spans/parts/*/*.parquet", "shards/spans/batches/*/*.json", "versions/ranges/*.json"]
)
@pytest.mark.parametrize("remove", [False, True])
def test_reading_what_is_damaged_is_an_error(root: Path, pattern: str, remove: bool) -> None:
    """Every way to read rows raises DamageError if an object that it needs is altered or missing."""
    for path in root.glob(pattern):
        if remove:
            path.unlink()
        else:
            flip(path)
    for read in readers(root):
        with pytest.raises(DamageError):
            read()


@pytest.mark.parametrize("pattern", ["search/spans/parts/*/*.pack", "search/spans/manifests/*.json"])
def test_searching_a_damaged_index_is_an_error(root: Path, pattern: str) -> None:
    """A search over an index with an altered or missing part or manifest raises DamageError; tables stay readable."""
    path = sorted(root.glob(pattern))[-1]
    data = path.read_bytes()
    for damaged in (data[:-7], b"", None):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        with tracelake.open(root) as lake:
            with pytest.raises(DamageError):
                lake.search("apple")
            assert len(lake.table("spans").to_arrow()) == 24


def test_a_lost_state_is_damage_and_not_an_empty_table(root: Path) -> None:
    """Tables with a missing state raise DamageError for every commit."""
    forget(root, *SPANS_STATE)
    with tracelake.open(root) as lake, pytest.raises(DamageError, match="state"):
        lake.table("spans").to_arrow()


def test_no_flipped_bit_gives_wrong_rows(tmp_path: Path) -> None:
    """A flip of any bit of a part makes reading the real rows an error; Parquet alone misses half of the flips."""
    chance = random.Random(8)
    with tracelake.init(tmp_path / "lake", buckets=1) as lake:
        lake.ingest(AGENTS, runner=InProcess())
        table = lake.table("spans")
        (part,) = map(Path, table.files())
        data = part.read_bytes()
        for _ in range(40):
            flipped = bytearray(data)
            flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            part.write_bytes(flipped)
            with pytest.raises(DamageError, match="is damaged"):
                table.to_arrow(["trace_id"], limit=1)
        part.write_bytes(data)
        assert len(table.to_arrow(["trace_id"])) == 4_931
