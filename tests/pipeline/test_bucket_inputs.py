"""Bucket objects as input: named by URLs and patterns, taken once by content, and never written."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.patience import HANG_S
from tests.pipeline.bucket_place import Place, bad, failing, fixture_place
from tests.pipeline.spans import a_line, a_span
from tracelake import LimitError, NotFoundError, StorageError, UsageError
from tracelake.journal.store import IngestedFiles
from tracelake.pipeline.sources import registry
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.files import KeyPattern, is_pattern
from tracelake.pipeline.sources.registry import fetch, find
from tracelake.storage import FileObjectStore, MemoryKeyValueStore, MemoryObjectStore, ObjectStore
from tracelake.tasks.runners import InProcess

__all__ = ["fixture_place"]


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        (
            "a/*.gz",
            ["a/b.gz", "a/[1].gz", "a/é .gz"],
            ["a/b/c.gz", "a/.b.gz", "b.gz", "a/b.gz.tmp", "a/", "a"],
        ),
        ("a/**/*.gz", ["a/b.gz", "a/b/c/d.gz"], ["a/.b/c.gz", "b/c.gz", "a/b/c"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b", "ab", "a/b/.c", "a/.b/c"]),
        ("**", ["a", "a/b"], [".a"]),
        ("**/a/**/a", ["a/a", "b/a/c/a", "a/b/a/a"], ["a", "a/b"]),
        ("a/.*/?[0-9][!a]", ["a/.b/c1b"], ["a/b/c1b", "a/.b/cab", "a/.b/c1a", "a/.b/c1bb"]),
        ("a[*]b", ["a*b"], ["axb"]),
        ("/".join(["**"] * 30) + "/x", ["a/" * 60 + "x"], ["a/" * 60 + "y"]),
        ("*a" * 30 + "b", ["a" * 30 + "b"], ["a" * 200]),
    ],
)
def test_patterns(pattern: str, matches: list[str], others: list[str]) -> None:
    """A pattern means the same as for files, in time linear in the key's length."""
    assert is_pattern(pattern)
    of = KeyPattern(pattern)
    assert [key for key in matches + others if of.matches(key)] == matches
    assert all(key.startswith(of.prefix) for key in matches)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("https://host/a.gz", "input cannot be read from https://. Give a path, or one of file://, s3://"),
        ("s3://", "must name a bucket"),
        ("s3:///a", "must name a bucket"),
        ("s3://ada:s3cret@bucket/a", "put credentials into the environment"),
        ("s3://bucket", "to match all objects below a prefix, write prefix/\\*\\*"),
        ("s3://bucket/a/", "to match all objects below a prefix"),
        ("s3://bucket/a//b", "single slashes"),
        ("s3://bucket/a/../b", "without '.', '..'"),
        ("s3://bucket/a\nb*", "'a\\\\nb\\*' is not a readable key"),
        ("s3://bucket/\udce9", "not Unicode"),
        ("BUCKET/absent/*", "no object matches"),
        ("LAKE/tables/*.parquet", "is inside the lake"),
        ("LAKE/lake.json", "is inside the lake"),
        ("file://a.gz", "three slashes"),
        ("file:///a%00b", "NUL character"),
    ],
)
def test_what_names_no_input(place: Place, pattern: str, said: str) -> None:
    """An invalid input name is refused with a remedy before any read, and the error repeats no secret."""
    pattern = pattern.replace("BUCKET", place.bucket.url).replace("LAKE", place.lake.url)
    with pytest.raises(UsageError, match=said) as refused:
        place.lake.ingest(pattern, runner=InProcess())
    assert "s3cret" not in str(refused.value)
    if "matches" not in said:  # a watched object need not exist yet
        with pytest.raises(UsageError, match=said):
            place.watch(pattern)


def test_objects_are_taken_once_by_content(place: Place) -> None:
    """Each object is ingested once, under any name; a missing, empty or non-OTLP object does not stop the others."""
    for number, key in enumerate(("in/a.jsonl", "in/b/c [1].jsonl", "in/b/100%é.jsonl")):
        place.put(key, number)
    place.bucket.put("in/b", b"")  # a directory mark as tools make it
    place.bucket.put("in/bad.jsonl", b"nonsense")
    report = place.ingest("in/**", "in/a.jsonl", "in/b/c [1].jsonl", "absent.jsonl")
    assert (report.files, report.spans_new, len(report.transactions)) == (5, 3, 1)
    assert sorted(bad(report)) == ["absent.jsonl", "bad.jsonl"]
    assert list(place.bucket.list("in/a")), "it is its owner's"
    place.bucket.copy("in/a.jsonl", "copy.jsonl")
    again = place.ingest("in/b/*", "copy.jsonl")
    assert (again.files_known, again.transactions) == (3, ())
    assert place.lake.verify().ok


def test_files_and_objects_side_by_side(place: Place, tmp_path: Path) -> None:
    """One call takes files and objects; a file has a URL in reports too, and equal bytes are one input."""
    path = tmp_path / "a%é [1].jsonl"
    path.write_bytes(a_line(a_span(0, 0)))
    place.put("same.jsonl", 0)
    report = place.lake.ingest(path.as_uri(), place.put("b.jsonl", 1), runner=InProcess())
    assert (report.files, report.spans_new, report.bad) == (2, 2, ())
    assert place.ingest("same.jsonl").files_known == 1


def test_what_is_the_lakes_own_is_left_out(place: Place) -> None:
    """A pattern that includes the lake takes only the objects outside it."""
    lake_in = place.url("lake")
    for key, own in (("lake/a", True), ("lake", False), ("lakes/a", False), ("a", False)):
        of = registry._OfTheLake(MemoryObjectStore(lake_in), "", registry._Address(place.url("**")))
        assert of.has(key) is own


def test_an_object_that_is_replaced_between_listing_and_reading(place: Place) -> None:
    """An object of another size, longer or shorter, is detected; the next run takes the current one."""
    for key, number in (("longer.jsonl", 0), ("shorter.jsonl", 1), ("same.jsonl", 2), ("gone.jsonl", 3)):
        place.put(key, number)

    class Replacing(InProcess):
        def run(self, *of: Any) -> list[Any]:
            place.bucket.put("longer.jsonl", a_line(a_span(0, 0)) + b"\n" + a_line(a_span(4, 0)))
            place.bucket.put("shorter.jsonl", a_line(a_span(1, 0))[:-9])
            place.put("same.jsonl", 5)
            place.bucket.delete("gone.jsonl")
            return super().run(*of)

    report = place.lake.ingest(place.url("*.jsonl"), runner=Replacing())
    assert report.spans_new == 1
    assert {name: reason.partition(" while")[0] for name, reason in bad(report).items()} == {
        "gone.jsonl": "is gone",
        "longer.jsonl": "changed",
        "shorter.jsonl": "changed",
    }
    assert place.ingest("longer.jsonl").spans_new == 2


def test_an_object_that_has_a_pattern_for_a_key(place: Place) -> None:
    """An object whose key is the pattern itself is taken, as with files, even if the pattern matches others."""
    urls = [place.put(key, 0) for key in ("in/a*", "in/aa")]
    objects = place.lake.objects
    assert [item.path for item in find(objects, urls[:1])] == urls[:1]
    assert [item.path for item in find(objects, [place.url("in/?*")])] == urls


def test_a_task_has_several_objects_on_their_way(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A task downloads a bounded number of objects at once, in order and with separate failures; files need no
    wait."""
    urls = [place.put(str(number), number) for number in range(4)]
    together, read = threading.Barrier(3), registry._Address.read

    def meeting(self: Any, size_bytes: int) -> Iterator[bytes]:
        if self.key in ("0", "1", "2"):
            together.wait(HANG_S)  # for the others: sequential reads would never meet
        return read(self, size_bytes)

    monkeypatch.setattr(registry, "INPUTS_FETCHED_AT_ONCE", 3)
    monkeypatch.setattr(registry._Address, "read", meeting)
    inputs = [Input("buckets", url, len(a_line(a_span(0, 0)))) for url in urls[:3]]
    inputs += [
        Input("files", "/a", 1),
        Input("buckets", place.url("absent"), 1),
        Input("buckets", urls[3], 1),
    ]
    came: list[object] = []
    for bring in registry.fetch_all(place.lake.objects, inputs, tmp_path):
        try:
            path = Path(bring())
            came.append(path.read_bytes() if path.parent == tmp_path else path)
        except NotFoundError:
            came.append("gone")
    assert came == [*(a_line(a_span(at, 0)) for at in range(3)), Path("/a"), "gone", b""]


class Meeting(MemoryObjectStore):
    """A store whose reads wait for each other, three at a time, and count concurrent reads."""

    def __init__(self) -> None:
        """Start without readers."""
        super().__init__()
        self._together = threading.Barrier(3)
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def get(self, path: str) -> bytes:
        """Read once two others do."""
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self._together.wait(HANG_S)
        with self._lock:
            self._now -= 1
        return super().get(path)


def test_a_task_has_several_segments_of_a_lake_in_a_bucket_on_their_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A task downloads a bounded number of segments at once, each to a separate file; file segments are read in
    place."""
    monkeypatch.setattr(registry, "INPUTS_FETCHED_AT_ONCE", 3)
    objects, files = Meeting(), FileObjectStore(tmp_path / "lake")
    paths = [f"inbox/{number}.segment" for number in range(6)]
    stores: list[ObjectStore] = [objects, files]
    for store, path in itertools.product(stores, paths):
        store.put(path, path.encode())
    inputs = [Input("inbox", path, 1) for path in paths]
    (tmp_path / "copies").mkdir()
    brought = [Path(bring()) for bring in registry.fetch_all(objects, inputs, tmp_path / "copies")]
    assert [copy.read_bytes().decode() for copy in brought] == paths
    assert objects.most == 3
    in_place = [bring() for bring in registry.fetch_all(files, inputs, tmp_path / "absent")]
    assert in_place == [files.local_path(path) for path in paths]


def test_what_is_left_of_an_object_that_cannot_be_read(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vanished object has no content, and half a copy is deleted at once, because others share its folder."""
    known = IngestedFiles(MemoryKeyValueStore(), "main")
    source = registry.BucketSource(place.lake.objects, known)
    assert (source.measured_bytes(place.url("absent")), registry._sha256(place.url("absent"), 1)) == (0, "")
    copies = {fetch(place.lake.objects, "buckets", place.put("a", 0), 1, tmp_path) for _ in range(2)}
    assert {Path(copy).stat().st_size for copy in copies} == {0}, "it has another size by now"
    failing(monkeypatch, "a")
    with pytest.raises(OSError, match="no answer"):
        fetch(place.lake.objects, "buckets", place.url("a"), 1, tmp_path)
    with pytest.raises(NotFoundError):
        fetch(place.lake.objects, "buckets", place.url("absent"), 1, tmp_path)
    assert {str(path) for path in tmp_path.iterdir()} == copies


def test_more_objects_than_one_call_takes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that matches too much is refused before any read."""
    monkeypatch.setattr(registry, "OBJECTS_FOUND_MAX", 1)
    for key in ("in/a", "in/b"):
        place.put(key, 0)
    with pytest.raises(LimitError, match="matches more than OBJECTS_FOUND_MAX = 1 objects; use several"):
        place.ingest("in/*")


def test_an_object_that_cannot_be_read_this_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed read in a task or a failed size lookup stops no other input; the next run tries again."""
    for number, key in enumerate(("in/a", "in/b", "in/c", "literal")):
        place.put(key, number)
    away = failing(monkeypatch, "in/b", "literal")
    report = place.ingest("in/*", "literal")
    assert report.spans_new == 2
    assert bad(report) == dict.fromkeys(("b", "literal"), f"cannot be read: no answer of {place.bucket.url}")
    assert list(place.lake.objects.list("staging/")) == []
    away.clear()
    assert (again := place.ingest("in/*", "literal")).spans_new == 2
    assert again.files_known == 2


def test_a_transaction_that_was_recorded_waits_for_its_bucket(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the recorded object is read again: no other input replaces it, and a replaced object is named."""
    place.put("a", 0)

    def fail_after_the_step(step: tracelake.Progress) -> None:
        if step.stage == "writing":
            raise StorageError("no store")

    with pytest.raises(StorageError, match="no store"):
        place.lake.ingest(place.url("a"), runner=InProcess(), progress=fail_after_the_step)
    away = failing(monkeypatch, "a")
    with pytest.raises(StorageError, match="no answer"):
        place.lake.pipeline(runner=InProcess()).run_once()
    away.clear()
    place.put("a", 0, note="another size")
    with pytest.raises(tracelake.SourceChangedError, match=place.url("a")):
        place.lake.pipeline(runner=InProcess()).run_once()
    place.put("a", 0)
    report = place.lake.pipeline(runner=InProcess()).run_once()
    assert report is not None
    assert (report.recovered, report.spans_new) == ((0,), 1)
