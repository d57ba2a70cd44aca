"""Location of a lake and of its metadata: made once, found again, never confused with another."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tests.storage.servers.postgres import PostgresServer
from tests.storage.servers.s3 import S3Server
from tracelake import DamageError, LakeExistsError, LakeNotFoundError, StorageError, UsageError
from tracelake.location import LAKES, create_lake
from tracelake.storage import KeyValueStore, ObjectStore, open_key_value, open_objects
from tracelake.tasks.runners import InProcess
from tracelake.tasks.spark import Spark
from tracelake.testing import Crashed, CrashingKeyValueStore, CrashingObjectStore, CrashPoint


def metadata_of(lake: Path) -> str:
    """Return the metadata URL in `lake.json`."""
    said: str = json.loads((lake / "lake.json").read_text())["metadata"]
    return said


@pytest.mark.parametrize("metadata", [None, "sqlite", "SQLITE URL"])
def test_a_lake_that_holds_its_metadata_can_be_moved(tmp_path: Path, metadata: str | None) -> None:
    """A lake can be moved with metadata in its directory, whether a word or a URL names it."""
    one = tmp_path / "a lake"
    urls = {"SQLITE URL": f"sqlite://{one}/metadata.db"}
    with tracelake.init(one.as_uri(), metadata=urls.get(metadata or "", metadata)) as lake:
        ingest(lake, tmp_path)
    assert metadata_of(one) == "sqlite"
    moved = shutil.move(one, tmp_path / "elsewhere")
    with tracelake.open(moved) as lake:
        assert lake.place == str(tmp_path / "elsewhere")
        assert lake.table("spans").info().rows == 1


@pytest.mark.parametrize(
    ("place", "metadata", "said"),
    [
        ("DIR", "DIR URL", "is called 'sqlite'"),
        ("DIR", "DIR URL/more", "is called 'sqlite'"),
        ("DIR", "objects", "is a directory; use 'sqlite'"),
        ("DIR", "file:///srv/records", "is not the URL of a key-value store; use sqlite:///"),
        ("DIR", "nonsense", "is not the URL of a key-value store"),
        ("s3://bucket/a", "sqlite", "s3://bucket/a is not a directory; use 'objects'"),
        ("s3://bucket/a", "s3://bucket/a/b", "is called 'objects'"),
        ("file://host/a", None, "three slashes"),
        ("ftp://host/a", None, "is not the URL of an object store"),
    ],
)
def test_places_that_cannot_be(tmp_path: Path, place: str, metadata: str | None, said: str) -> None:
    """Each invalid location is refused with a remedy, and nothing is created."""
    lake = tmp_path / "lake"
    with pytest.raises(UsageError, match=said):
        tracelake.init(
            place.replace("DIR", str(lake)), metadata=metadata and metadata.replace("DIR URL", lake.as_uri())
        )
    assert not list(lake.glob("lake.json"))


def test_one_database_holds_many_lakes(tmp_path: Path, postgres: PostgresServer) -> None:
    """Lakes in one table are separate: each has its own history, and none opens with another's metadata."""
    url = postgres.url(postgres.new_schema())
    for number in range(2):
        with tracelake.init(tmp_path / f"lake{number}", metadata=url) as lake:
            ingest(lake, tmp_path, spans=number + 1)
    for number in range(2):
        with tracelake.open(tmp_path / f"lake{number}") as lake:
            assert (lake.table("spans").info().rows, len(lake.log())) == (number + 1, 1)
            assert lake.verify().ok
    tracelake.init(tmp_path / "third").close()
    with pytest.raises(
        UsageError, match=r"is not the metadata of the lake in .*third, which is in .*metadata\.db"
    ):
        tracelake.open(tmp_path / "third", metadata=url)


def test_metadata_that_was_moved_is_named_on_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A metadata option overrides `lake.json` for this lake; lost metadata is not created again."""
    before, after = tmp_path / "before.db", tmp_path / "after.db"
    with tracelake.init(tmp_path / "lake", metadata=f"sqlite://{before}") as lake:
        ingest(lake, tmp_path)
    before.rename(after)
    with pytest.raises(DamageError, match=r"before\.db is gone.*TRACELAKE_METADATA"):
        tracelake.open(tmp_path / "lake")
    assert not before.exists()
    monkeypatch.setenv("TRACELAKE_METADATA", f"sqlite://{after}")
    with tracelake.open(tmp_path / "lake") as lake:
        assert lake.table("spans").info().rows == 1
    open_key_value(f"sqlite://{before}").close()
    with pytest.raises(DamageError, match=r"before\.db knows no lake [0-9a-f]{32}: it leads to all data"):
        tracelake.open(tmp_path / "lake", metadata=f"sqlite://{before}")
    with pytest.raises(UsageError, match=r"absent\.db is not the metadata of the lake"):
        tracelake.open(tmp_path / "lake", metadata=f"sqlite://{tmp_path}/absent.db")
    assert not (tmp_path / "absent.db").exists()


def test_a_password_is_used_and_not_kept(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password in the metadata URL is used, but neither `lake.json` nor an error contains it."""
    url = postgres.url(postgres.new_schema())
    secret = url.replace("tests@", "tests:s3cret@") + "&password=s3cret2&sslpassword=s3cret3"
    tracelake.init(tmp_path / "lake", metadata=secret).close()
    assert metadata_of(tmp_path / "lake") == url
    tracelake.open(tmp_path / "lake").close()
    monkeypatch.setenv("TRACELAKE_METADATA", secret)
    tracelake.open(tmp_path / "lake").close()
    tracelake.init(tmp_path / "other", metadata="sqlite").close()
    with pytest.raises(UsageError, match="is not the metadata") as caught:
        tracelake.open(tmp_path / "other")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("backend", ["file", "s3"])
def test_init_that_was_killed_is_repeated(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If `init` is killed before or after any call, it leaves a whole lake or none, and can be repeated."""

    def crashing_objects(url: str) -> ObjectStore:
        return CrashingObjectStore(open_objects(url), crash)

    def crashing_key_value(url: str) -> KeyValueStore:
        return CrashingKeyValueStore(open_key_value(url), crash)

    s3: S3Server | None = request.getfixturevalue("s3") if backend == "s3" else None
    killed = 0
    for after in (False, True):
        for at in range(1, 100):
            url = s3.url() if s3 else str(tmp_path / f"lake-{at}-{after}")
            crash = CrashPoint(at, after=after)
            with monkeypatch.context() as patch:
                patch.setattr("tracelake.location.open_objects", crashing_objects)
                patch.setattr("tracelake.location.open_key_value", crashing_key_value)
                try:
                    create_lake(url, None, 8)
                except Crashed:
                    killed += 1
                else:
                    break
            try:
                tracelake.open(url).close()
            except LakeNotFoundError:
                tracelake.init(url).close()
            with pytest.raises(LakeExistsError):
                tracelake.init(url)
    assert killed >= 4


@pytest.mark.parametrize("metadata", ["sqlite", "s3", "postgresql"])
def test_of_many_that_make_a_lake_at_once_one_does(
    metadata: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """If several processes make one lake, one `init` succeeds, the others report an existing lake."""
    place = str(tmp_path / "lake")
    if metadata == "s3":
        server: S3Server = request.getfixturevalue("s3")
        place, metadata = server.url(), "objects"
    records = f"sqlite://{place}/metadata.db" if metadata == "sqlite" else f"{place}/metadata"
    if metadata == "postgresql":
        database: PostgresServer = request.getfixturevalue("postgres")
        records = metadata = database.url(database.new_schema())
    made, lost = [], []
    barrier = threading.Barrier(6)

    def make() -> None:
        barrier.wait()
        try:
            with tracelake.init(place, metadata=metadata) as lake:
                made.append(lake.config.id)
        except LakeExistsError as error:
            lost.append(error)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(lost)) == (1, 5)
    with contextlib.closing(open_key_value(records)) as store:
        assert [entry.key for entry in store.scan(LAKES)] == made


def test_a_place_in_a_bucket_must_be_empty(s3: S3Server) -> None:
    """A lake is created only in an empty prefix, and opened only where one exists."""
    url = s3.url()
    with pytest.raises(LakeNotFoundError, match=f"tracelake init {url}"):
        tracelake.open(url)
    open_objects(url).put("some/thing", b"")
    with pytest.raises(UsageError, match="no empty place"):
        tracelake.init(url)
    assert [info.path for info in open_objects(url).list("")] == ["some/thing"]


@pytest.mark.parametrize("change", ["bucket", "endpoint", "database", "port"])
def test_stores_that_are_not_there(
    change: str, s3: S3Server, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreachable store is one sentence with a remedy, after a bounded time."""
    if change == "endpoint":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    attempts: dict[str, tuple[Callable[[], object], str]] = {
        "bucket": (
            lambda: tracelake.init("s3://no-such-bucket/lake"),
            "the bucket does not exist; create it",
        ),
        "endpoint": (lambda: tracelake.open(s3.url()), r"http://127\.0\.0\.1:9 does not answer"),
        "database": (
            lambda: tracelake.init(tmp_path, metadata=postgres.url().replace("/postgres", "/none")),
            '"none" does not exist; create the database',
        ),
        "port": (
            lambda: tracelake.init(tmp_path, metadata="postgresql://tests@127.0.0.1:9/postgres"),
            "Connection refused; check that it runs",
        ),
    }
    attempt, said = attempts[change]
    with pytest.raises(StorageError, match=said) as caught:
        attempt()
    assert "\n" not in str(caught.value)


def test_spark_cannot_reach_a_lake_in_memory(tmp_path: Path) -> None:
    """A lake in memory refuses Spark, because its tasks run in this process; its data survives reopening."""
    url = f"memory://{uuid.uuid4().hex}"
    with pytest.raises(LakeNotFoundError, match="in this process"):
        tracelake.open(url)
    with tracelake.init(url) as lake:
        (tmp_path / "0.jsonl").write_bytes(a_line(a_span(0, 0)))
        with pytest.raises(UsageError, match="in the memory of this process"):
            lake.ingest(tmp_path / "0.jsonl", master="local[2]")
        with pytest.raises(UsageError, match="in the memory of this process"):
            lake.pipeline(runner=Spark())
        assert lake.ingest(tmp_path / "0.jsonl").spans_new == 1
    with tracelake.open(url) as lake:
        assert lake.table("spans").info().rows == 1


def test_a_bad_copy_is_no_damage(tmp_path: Path) -> None:
    """An altered or deleted local copy is fetched again; a part absent from the store is named."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}") as lake:
        ingest(lake, tmp_path)
        table = lake.table("spans")
        (copy,) = map(Path, table.files())
        for change in (lambda: copy.write_bytes(b"x"), copy.unlink):
            change()
            assert table.to_arrow(["name"]).num_rows == 1
        (part,) = lake.objects.list("shards/spans/parts/")
        lake.objects.delete(part.path)
        copy.unlink()
        with pytest.raises(DamageError, match=f"a part is missing: .*{part.path}"):
            table.to_arrow()


def ingest(lake: tracelake.Lake, folder: Path, spans: int = 1) -> None:
    """Ingest some spans without Spark."""
    file = folder / f"{spans}.jsonl"
    file.write_bytes(a_line(*(a_span(number, 0) for number in range(spans))))
    assert lake.ingest(file, runner=InProcess()).spans_new == spans


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
def test_metadata_that_was_cut_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    """A lake whose metadata.db is empty or foreign is damaged, and opening it changes nothing."""
    tracelake.init(tmp_path / "lake").close()
    for end in ("-wal", "-shm"):
        (tmp_path / "lake" / f"metadata.db{end}").unlink(missing_ok=True)
    (tmp_path / "lake" / "metadata.db").write_bytes(content)
    with pytest.raises(DamageError, match=r"metadata\.db"):
        tracelake.open(tmp_path / "lake")
    assert (tmp_path / "lake" / "metadata.db").read_bytes() == content
