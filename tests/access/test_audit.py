"""The audit log: listing, filters and trimming, and how it bounds a flood of refused requests."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import tracelake
from tests.torn import lake_in_bucket, tear
from tracelake import limits
from tracelake._errors import UsageError
from tracelake.access import audit
from tracelake.access.audit import (
    OTHERS,
    EventCounter,
    audit_record,
    expired,
    since_ns,
    with_outcome,
)
from tracelake.access.keys import AuditKind, AuditRecord

MINUTE_NS = audit.AUDIT_COUNTED_NS


def record(
    at_ns: int, action: str = "POST /", workspace: str = "*", kind: AuditKind = "change", key_id: str = "1"
) -> AuditRecord:
    """Return a record with this time."""
    made = audit_record(kind, key_id, action, workspace=workspace)
    return msgspec.structs.replace(made, at_ns=at_ns, id=audit.id_at(kind, workspace, at_ns))


@contextmanager
def patched(target: object, name: str, value: object) -> Iterator[None]:
    """Set an attribute until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, value)
        yield


def lake_with(*records: AuditRecord) -> tracelake.Lake:
    """Return a lake in memory with an audit."""
    lake = tracelake.init(f"memory://{uuid.uuid4().hex}")
    lake.audit.write(records)
    return lake


def check_lists() -> None:
    """Check that lists are newest first, in pages, and filtered by time, key and workspace, with a limit."""
    kinds: tuple[AuditKind, ...] = ("change", "annotation", "counted")
    records = [record(n, f"POST /{n}", "ab"[n % 2], kinds[n % 3], key_id=str(n % 5)) for n in range(100, 130)]
    with lake_with(*records) as lake, pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "AUDIT_PAGE_RECORDS", 3)
        assert [each.at_ns for each in lake.audit.newest()] == [*range(129, 99, -1)]
        assert [each.at_ns for each in lake.audit.newest(4)] == [129, 128, 127, 126]
        assert [each.at_ns for each in lake.audit.newest(since_ns=127)] == [129, 128, 127]
        assert {each.key_id for each in lake.audit.newest(key_id="3")} == {"3"}
        within = lake.within("a").audit.newest()
        assert {each.workspace for each in within} == {"a"}
        assert len(within) == 15
        lake.audit.write([with_outcome(records[-1], "201", "branch b")])
        (newest,) = lake.audit.newest(1)
        assert (newest.id, newest.outcome, newest.object) == (records[-1].id, "201", "branch b")
        # of a name with the same hash
        of_b = msgspec.structs.replace(record(5, workspace="a"), workspace="b")
        lake.audit.write([of_b])
        assert {each.workspace for each in lake.within("a").audit.newest()} == {"a"}


def check_trims() -> None:
    """Check that expired records are removed, then the oldest above the limit, separately for each kind."""
    old = limits.AUDIT_KEPT_NS
    records = [record(each) for each in (1, 2, *range(old, old + 5))]
    counts = [record(old + each, kind="counted") for each in range(2)]
    with lake_with(*records, *counts) as lake, pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "AUDIT_RECORDS_MAX", 3)
        patch.setattr(audit, "AUDIT_GAP_MAX_NS", old)
        patch.setattr(audit, "AUDIT_TRIMMED_MAX", 3)
        assert [lake.audit.trim(old + 5) for _ in range(3)] == [3, 1, 0]
        left = [(each.kind, each.at_ns - old) for each in lake.audit.newest()]
        assert sorted(left) == [("change", 2), ("change", 3), ("change", 4), ("counted", 0), ("counted", 1)]
        assert [lake.audit.trim(2 * old + 3) for _ in range(3)] == [3, 1, 0]
        lake.maintenance.gc(dry_run=True)
        assert len(lake.audit.newest()) == 1
        lake.maintenance.gc()  # of this day
        assert lake.audit.newest() == []


def check_jumps() -> None:
    """Check that a clock that jumps ahead and back expires only records that were about to expire."""
    day, year = 86_400 * 10**9, 365 * 86_400 * 10**9
    now = 50 * year
    times = [now - 10 * day * n for n in range(45)]
    assert list(expired(times, now)) == [40, 41, 42, 43, 44]
    assert list(expired(times, now + 2 * year)) == [37, 38, 39, 40, 41, 42, 43, 44]
    ahead = [now + 2 * year - n for n in range(5)]
    jumped = [*ahead, *times]
    assert list(expired(jumped, now + 2 * year)) == [42, 43, 44, 45, 46, 47, 48, 49]
    assert list(expired(jumped, now)) == [45, 46, 47, 48, 49]
    assert list(expired(jumped, 0)) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "AUDIT_RECORDS_MAX", 4)
        assert list(expired([*ahead, *times[:5]], now)) == [4, 9]


def check_reads_names() -> None:
    """Check that records are trimmed by name alone, and unknown names stay."""
    with (
        lake_with(*[record(n, workspace="ab"[n % 2]) for n in range(6)]) as lake,
        patched(limits, "AUDIT_RECORDS_MAX", 1),
    ):
        store = lake._opened.key_value
        store.set("audit", "*/change/other", b"of another release")
        with patched(store, "scan", None), patched(store, "get", None):
            assert lake.audit.trim(6) == 4
        assert len(store.keys("audit")) == 3


def check_counts() -> None:
    """Check that similar events of one minute share a record, written about ten times per thousand events."""
    counted = EventCounter()
    written: list[AuditRecord] = []

    def count(now_ns: int, **more: str) -> list[AuditRecord]:
        # The wall clock, from which records have their times, may be changed.
        due = counted.count(record(10**18 - now_ns, "refused: read", kind="counted", **more), now_ns)
        counted.wrote(due)
        return due

    for n in range(1_000):
        written += count(MINUTE_NS + n)
    assert len({each.id for each in written}) == 1
    assert [each.times for each in written] == [2**n for n in range(10)]
    assert [each.times for each in counted.unwritten()] == [1_000]
    written = count(2 * MINUTE_NS)
    assert [each.times for each in written] == [1_000, 1]
    assert counted.unwritten() == []
    for n in range(1_000):
        written += count(2 * MINUTE_NS, key_id=f"k{n}", workspace="a")
    assert len({each.id for each in written}) <= audit.AUDIT_COUNTED_MAX + 2
    (others,) = counted.unwritten()
    assert (others.action, others.key_id, others.workspace) == (OTHERS, "", "*")
    assert others.times == 1_001 - audit.AUDIT_COUNTED_MAX
    assert others.id.startswith("*/counted/")


def check_made_up_for() -> None:
    """Check that a failed counter write is retried, even after its minute; their number is bounded."""
    counted = EventCounter()
    for _ in range(4):
        due = counted.count(record(1, kind="counted"), 0)
    assert [each.times for each in counted.unwritten()] == [4]
    (again,) = counted.count(record(2, kind="counted"), MINUTE_NS)[:-1]
    assert again == due[0]
    assert [each.times for each in counted.unwritten()] == [4, 1]
    counted.wrote([again])
    assert [each.times for each in counted.unwritten()] == [1]
    for minute in range(2, 2 * audit.AUDIT_COUNTED_MAX):
        counted.count(record(1, kind="counted"), minute * MINUTE_NS)
    left = counted.unwritten()
    assert len(left) <= audit.AUDIT_COUNTED_MAX + 2


def check_pushes_out() -> None:
    """Check that many events with keys of one workspace do not displace those of other keys, whatever their names."""
    kept = [record(1, workspace=each) for each in ("*", "b", "a/b", "a0", "ä" * 80)]
    flood = [record(n, workspace="a") for n in range(2, 12)]
    with lake_with(*kept, *flood) as lake, pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "AUDIT_RECORDS_MAX", 3)
        assert lake.audit.trim(20) == 7
        assert [each.at_ns for each in lake.audit.newest()] == [11, 10, 9, 1, 1, 1, 1, 1]
        assert {each.id for each in lake.audit.newest()} > {each.id for each in kept}
        assert [each.id for each in lake.within("a/b").audit.newest()] == [kept[2].id]


@pytest.mark.parametrize(
    "check",
    [
        *(check_lists, check_trims, check_jumps, check_reads_names),
        *(check_counts, check_made_up_for, check_pushes_out),
    ],
)
def test_rules(check: Callable[[], None]) -> None:
    """Each rule of the audit log holds."""
    check()


def test_whatever_stands_in_texts(tmp_path: Path) -> None:
    """A record stores any text, cut and without control characters; a torn record does not block reading others."""
    with lake_in_bucket(tmp_path) as lake:
        crafted = audit_record("change", "1", "POST /\x1b[2J\n" + "x" * 1_000, name="\ud800", object="\0")
        lake.audit.write([crafted, audit_record("change", "2", "POST /whole")])
        assert crafted.action.startswith(r"POST /\x1b[2J\nxxx")
        assert len(crafted.action) <= limits.AUDIT_TEXT_MAX_CHARS + 10
        assert len(lake.audit.newest()) == 2
        tear(tmp_path, "POST /whole")
        assert [each.key_id for each in lake.audit.newest()] == ["1"]
        report = lake.verify()
        assert [each.path.startswith("audit/*/change/") for each in report.findings] == [True]
    with pytest.raises(UsageError, match="1 to 10,000"):
        lake.audit.newest(0)
    assert since_ns("1h", 3_600 * 10**9 + 5) == 5
