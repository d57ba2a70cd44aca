"""The audit as it is kept: what is listed, of whom, what is removed, and how little a flood of refused requests is."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import tracelake
from tests.broken import Broken, assert_caught
from tests.torn import lake_of_files, tear
from tracelake import limits
from tracelake._errors import UsageError
from tracelake.access import audit, counting
from tracelake.access.audit import audit_record, since_ns, with_outcome
from tracelake.access.counting import OTHERS, Counting
from tracelake.access.model import AuditKind, AuditRecord

MINUTE_NS = limits.AUDIT_COUNTED_NS


def record(
    at_ns: int, action: str = "POST /", workspace: str = "*", kind: AuditKind = "change", key_id: str = "1"
) -> AuditRecord:
    """Return a record of a time."""
    made = audit_record(kind, key_id, action, workspace=workspace)
    return msgspec.structs.replace(made, at_ns=at_ns, id=f"{audit._beginning(kind, at_ns)}-{made.id[-8:]}")


def lake_with(*records: AuditRecord) -> tracelake.Lake:
    """Return a lake in memory with an audit."""
    lake = tracelake.init(f"memory://{uuid.uuid4().hex}")
    lake.audit.write(records)
    return lake


def check_lists() -> None:
    """The newest come first, of all kinds, page by page; of a time, of a key, of a workspace; so many."""
    kinds: tuple[AuditKind, ...] = ("change", "annotation", "counted")
    records = [record(n, f"POST /{n}", "ab"[n % 2], kinds[n % 3], key_id=str(n % 5)) for n in range(100, 130)]
    with lake_with(*records) as lake, pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "AUDIT_PAGE_RECORDS", 3)
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


def check_trims() -> None:
    """What is too old goes, and of what is too much the oldest, of each kind apart."""
    old = limits.AUDIT_KEPT_NS
    records = [record(each) for each in (1, 2, *range(old, old + 5))]
    counts = [record(old + each, kind="counted") for each in range(2)]
    with lake_with(*records, *counts) as lake, pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "AUDIT_RECORDS_MAX", 3)
        patch.setattr(limits, "AUDIT_PAGE_RECORDS", 2)
        assert lake.audit.trim(old + 5) == 4
        left = [(each.kind, each.at_ns - old) for each in lake.audit.newest()]
        assert sorted(left) == [("change", 2), ("change", 3), ("change", 4), ("counted", 0), ("counted", 1)]
        assert lake.audit.trim(2 * old + 3) == 4
        assert lake.audit.trim(2 * old + 3) == 0
        lake.maintenance.gc(dry_run=True)
        assert len(lake.audit.newest()) == 1
        lake.maintenance.gc()  # of this day
        assert lake.audit.newest() == []


def check_counts() -> None:
    """A thousand like things of a minute are one record, written ten times; of another minute, or another, another."""
    counted = Counting()
    written: list[AuditRecord] = []
    for n in range(1_000):
        written += counted.count(record(MINUTE_NS + n, "refused: read", kind="counted"))
    assert len({each.id for each in written}) == 1
    assert [each.times for each in written] == [2**n for n in range(10)]
    assert [each.times for each in counted.unwritten()] == [1_000]
    written = counted.count(record(2 * MINUTE_NS, "refused: read", kind="counted"))
    assert [each.times for each in written] == [1_000, 1]
    assert counted.unwritten() == []
    for n in range(1_000):
        written += counted.count(record(2 * MINUTE_NS, "refused: read", kind="counted", key_id=f"k{n}"))
    assert len({each.id for each in written}) <= limits.AUDIT_COUNTED_MAX + 2
    (others,) = counted.unwritten()
    assert (others.action, others.key_id, others.workspace) == (OTHERS, "", "*")
    assert others.times == 1_001 - limits.AUDIT_COUNTED_MAX
    written = counted.count(record(MINUTE_NS, "refused: read", kind="counted"))  # the clock went back
    assert [each.times for each in written] == [2]


@pytest.mark.parametrize("check", [check_lists, check_trims, check_counts])
def test_rules(check: Callable[[], None]) -> None:
    """Each holds."""
    check()


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Broken("a workspace sees its own", audit.Audit._is_shown, "self._workspace in (None, record.workspace)",
                "True"), check_lists),
        (Broken("pages follow one another", audit.Audit._entries, 'start = f"{page[-1].key}\\0"', "return"),
         check_lists),
        (Broken("the newest come first", audit._beginning, "_TIME_STOP - max(0, at_ns)", "max(0, at_ns)"),
         check_lists),
        (Broken("what is old goes", audit.Audit.trim, "entry.key > stop", "False"), check_trims),
        (Broken("what is too much goes", audit.Audit.trim, "number >= limits.AUDIT_RECORDS_MAX", "False"),
         check_trims),
        (Broken("a number is written where it doubled", counting._is_written_at, "times & (times - 1) == 0", "True"),
         check_counts),
        (Broken("different things are bounded", Counting.count, "len(self._counted) >= limits.AUDIT_COUNTED_MAX",
                "False"), check_counts),
    ],
    ids=lambda each: getattr(each, "rule", ""),
)  # fmt: skip
def test_broken_rules_are_caught(broken: Broken, check: Callable[[], None]) -> None:
    """Each is noticed when it is gone."""
    assert_caught(broken, check)


def test_whatever_stands_in_texts(tmp_path: Path) -> None:
    """A record takes any text, cut and without control characters; one that is torn keeps no other from being read."""
    with lake_of_files(tmp_path) as lake:
        crafted = audit_record("change", "1", "POST /\x1b[2J\n" + "x" * 1_000, name="\ud800", object="\0")
        lake.audit.write([crafted, audit_record("change", "2", "POST /whole")])
        assert crafted.action.startswith(r"POST /\x1b[2J\nxxx")
        assert len(crafted.action) <= limits.AUDIT_TEXT_MAX_CHARS + 10
        assert len(lake.audit.newest()) == 2
        tear(tmp_path, "POST /whole")
        assert [each.key_id for each in lake.audit.newest()] == ["1"]
        report = lake.verify()
        assert [each.path.startswith("audit/change/") for each in report.findings] == [True]
    with pytest.raises(UsageError, match="1 to 10,000"):
        lake.audit.newest(0)
    assert since_ns("1h", 3_600 * 10**9 + 5) == 5
