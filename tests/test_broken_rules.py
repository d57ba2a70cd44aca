"""Rules of collection, of quarantine and of `verify`: if one is broken, a test of it fails.

A rule without such a test is only a wish.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

import tracelake
from tests.broken import Broken, assert_caught
from tests.journal import test_protocol as protocol_tests
from tests.lake import test_verify as record_tests
from tests.lake import test_verify_mismatch as verify_tests
from tests.pipeline import test_setting_aside as aside_tests
from tests.pipeline.poison import good
from tests.versions import test_collect as collect_tests
from tests.versions.collected_world import World
from tracelake import Lake
from tracelake._errors import DamageError
from tracelake.journal import protocol
from tracelake.journal.model import QuarantineRecord
from tracelake.journal.store import check_transactions, record_key
from tracelake.lake.backup import Verifier
from tracelake.pipeline.poison_input import PoisonInputFinder
from tracelake.pipeline.publish import InputAcker
from tracelake.pipeline.quarantine_actions import QuarantineActions
from tracelake.pipeline.sources.base import ContentDedup
from tracelake.pipeline.sources.server_inputs import InboxSource
from tracelake.pipeline.verify import check_counts
from tracelake.search.vectors import PLAIN
from tracelake.search.verify import IndexCheck
from tracelake.shards import verify as shard_checks
from tracelake.shards.verify import ShardCheck
from tracelake.tables.maintenance import check_built_in
from tracelake.tasks.runners import InProcess
from tracelake.versions import verify as history_checks
from tracelake.versions.gc import BEHIND, Reached, RepositoryCollector
from tracelake.versions.model import Commit, Metarange, Range

PASSED = "may_be_missing=may_be_missing)"

# Garbage collection behind damage


def check_damage() -> None:
    for kind, stays in (
        (Commit, {"commits", "metaranges", "ranges", "files"}),
        (Metarange, {"ranges", "files"}),
        (Range, {"files"}),
    ):
        collect_tests.test_damage_keeps_what_may_lie_behind_it(kind, stays, is_gone=False)
    collect_tests.test_a_staged_entry_that_is_damaged_keeps_files_alone()


@pytest.mark.parametrize(
    "broken",
    [
        Broken("a damaged commit hides", Reached.follow, f"self.hide(Commit, step, {PASSED}", "pass"),
        Broken(
            "a damaged metarange hides", Reached.follow, f"self.hide(Metarange, metarange, {PASSED}", "pass"
        ),
        Broken("a damaged range hides", Reached.follow, f"self.hide(Range, content, {PASSED}", "pass"),
        Broken("what is hidden is unknown", Reached.hide, "self.unknown.update(BEHIND[kind])", "pass"),
        Broken("what is hidden is told", Reached.hide, "self.damage.append(str(error))", "pass"),
        Broken(
            "a damaged staged entry hides files",
            RepositoryCollector._reach_pending,
            "reached.hide(ChangeSet, damage_of(under.damaged))",
            "pass",
        ),
        Broken(
            "unknown kinds stay", RepositoryCollector.collect, "if kind not in reached.unknown", "if True"
        ),
        Broken(
            "unknown files stay", RepositoryCollector.collect, "if FileAt not in reached.unknown", "if True"
        ),
        Broken(
            "where files are unknown, so are indexes",
            RepositoryCollector.collect,
            "None if FileAt in reached.unknown else frozenset",
            "frozenset",
        ),
    ],
    ids=lambda broken: broken.rule,
)
def test_collecting_behind_damage(broken: Broken) -> None:
    """Each broken rule, which would delete reachable objects or hide the damage, is caught."""
    assert_caught(broken, check_damage)


@pytest.mark.parametrize(
    ("kind", "behind"), [(kind, behind) for kind, kinds in BEHIND.items() for behind in kinds]
)
def test_each_kind_behind_another_is_kept(kind: type, behind: type) -> None:
    """If the table of reachable kinds lacks an entry, something that must stay is deleted."""
    less = {kind: tuple(other for other in BEHIND[kind] if other is not behind)}
    with mock.patch.dict(BEHIND, less), pytest.raises(AssertionError):
        check_damage()


@pytest.mark.parametrize("partition", ["branches", "tags"])
def test_a_name_that_cannot_be_read_stops_collection(partition: str) -> None:
    """An unreadable name, whose target is unknown, stops collection before any deletion; the error names it."""
    world = World()
    first = world.commit("a", 1)
    world.repository.create_branch("side", first)
    world.commit("b", 2, "side")
    world.repository.tag("kept", first)
    name = "side" if partition == "branches" else "kept"
    for _ in range(3):
        world.collect()
    before = world.paths()
    world.key_value.set(partition, name, b"torn")
    for _ in range(3):
        with pytest.raises(DamageError, match=name):
            world.collect()
    assert world.paths() == before


# Quarantine


def a_lake() -> Lake:
    return tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2)


def check_taken(folder: Path) -> None:
    for source in ("inbox", "files"):
        with a_lake() as made:
            aside_tests.test_what_a_peer_takes_meanwhile_is_not_set_aside(made, folder, source)


def check_commit_is_asked() -> None:
    """Check that the commit decides if a record says that T is quarantined but T was published before."""
    with a_lake() as made:
        made.objects.put("inbox/0.segment", good(0))
        made.pipeline(runner=InProcess()).run_once()
        made.objects.put("inbox/0.segment", good(0))  # killed before it was deleted
        fates = QuarantineActions("main", made._opened.key_value, made.objects, 2, PLAIN)
        fates._journal.quarantine(QuarantineRecord(0, "no", 3, "pipeline", "now", 0, ()))
        assert fates._settling.settle(0) == []
        assert list(made.objects.list("inbox/")) == []
        assert made.quarantine.all() == []


def check_discarded() -> None:
    with a_lake() as made:
        aside_tests.test_what_is_discarded_is_named_for_ever(made, "read")


def check_rows() -> None:
    for row in protocol_tests.ROWS:
        protocol_tests.test_each_row_of_the_table(*row)
    protocol_tests.test_j11_a_changed_source_fails_loudly()
    protocol_tests.test_j15_a_changed_transform_is_refused()


def test_the_commit_says_whether_it_was_set_aside() -> None:
    """A peer may have published a whole transaction before it could be quarantined, so its commit decides."""
    check_commit_is_asked()


@pytest.mark.parametrize(
    "broken",
    [
        Broken(
            "taken meanwhile",
            PoisonInputFinder._narrow,
            "if self._context.acker.is_committed(suspect):",
            "if False:",
        ),
        Broken("a segment that is gone was taken", InboxSource.is_committed, "is None", "is not None"),
        Broken(
            "a file that is known was taken",
            ContentDedup.is_committed,
            "sha256) is not None",
            '"") is not None',
        ),
    ],
    ids=lambda broken: broken.rule,
)
def test_what_a_peer_takes(broken: Broken, tmp_path: Path) -> None:
    """Each broken rule, which names an input that is already in the tables, is caught."""
    assert_caught(broken, lambda: check_taken(tmp_path))


RECOVERY: list[tuple[str, Callable[..., object], str, str]] = [
    ("what is set aside is skipped", protocol._start, "if event.is_quarantined:", "if False:"),
    (
        "only a commit is missing",
        protocol._start,
        "sealed and event.only",
        "sealed or event.only",
    ),
    ("rows that stand are staged", protocol._start, "event.sealed and event.has_rows", "False"),
    ("only sealed rows stand", protocol._start, "event.sealed and event.has_rows", "event.has_rows"),
    ("another release is refused", protocol._start, "step.transform != event.transform", "False"),
    ("its way out is named", protocol._of_another_release, '"" if has_rows else', '"" if True else'),
    ("tries are counted", protocol.advance, "tries < tries_max", "tries <= tries_max"),
    ("rows that stand are finished", protocol.advance, "Abandon(t) if event.has_rows else", ""),
    ("what is fed is compared", protocol._fed, "difference is not None", "False"),
    (
        "the sealed is not sealed again",
        protocol._fed,
        "if sealed:",
        "if True:",
    ),
    (
        "one of several is tried once",
        protocol.tries_max,
        "event.suspected and event.inputs > 1",
        "False",
    ),
    ("one that is alone is tried often", protocol.tries_max, "and event.inputs > 1", ""),
    ("only suspects are tried once", protocol.tries_max, "event.suspected and", ""),
]


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Broken("the commit is asked", InputAcker.settle, "and self._outputs.was_quarantined(t)", ""),
            check_commit_is_asked,
        ),
        (
            Broken(
                "what is discarded is deleted",
                InputAcker.discard,
                'suspect.state == "discarded"',
                "False",
            ),
            check_discarded,
        ),
        *((Broken(rule, function, old, new), check_rows) for rule, function, old, new in RECOVERY),
    ],
    ids=lambda given: given.rule if isinstance(given, Broken) else "check",
)
def test_setting_aside(broken: Broken, check: Callable[[], None]) -> None:
    """Each broken rule, which decides differently from the table, is caught."""
    assert_caught(broken, check)


# Comparisons of `verify`


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a lake of three transactions."""
    folder = tmp_path_factory.mktemp("whole")
    with verify_tests.made(folder):
        return folder / "lake"


@pytest.fixture
def lake(whole: Path, tmp_path: Path) -> Iterator[Lake]:
    """Return a copy of the lake to change."""
    with tracelake.open(shutil.copytree(whole, tmp_path / "lake")) as opened:
        yield opened


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Broken("rows of a part", ShardCheck.check_part, "len(rows) != part.rows", "False"),
            verify_tests.test_rows_of_a_part,
        ),
        (
            Broken(
                "times of a part", ShardCheck.check_part, "not batch.lower <= time < batch.upper", "False"
            ),
            verify_tests.test_times_of_a_part,
        ),
        *(
            (
                Broken(f"{name} of a batch", shard_checks._check_ref, f"batch.{name},", f"ref.{name},"),
                lambda lake, name=name: verify_tests.test_a_batch_against_the_state(lake, name),
            )
            for name in ("lower", "upper", "id")
        ),
        (
            Broken("rows of a batch", shard_checks._check_ref, "batch.id, rows)", "batch.id, ref.rows)"),
            lambda lake: verify_tests.test_a_batch_against_the_state(lake, "rows"),
        ),
        (
            Broken("unique spans", check_built_in, "count(*) > 1", "count(*) > 2"),
            verify_tests.test_a_span_that_is_there_twice,
        ),
        (
            Broken("files of tags", Verifier._check_files, "records.heads", "records.heads[:0]"),
            verify_tests.test_a_file_that_only_a_tag_leads_to,
        ),
        (
            Broken("documents of a part", IndexCheck.parts, "rows not in (None, part.documents)", "False"),
            verify_tests.test_documents_of_an_index_part,
        ),
        (
            Broken(
                "documents of a manifest", IndexCheck._check_rows, "manifest.documents != expected", "False"
            ),
            verify_tests.test_total_of_a_manifest,
        ),
    ],
    ids=lambda given: given.rule if isinstance(given, Broken) else "check",
)
def test_what_is_compared(broken: Broken, check: Callable[[Lake], None], lake: Lake) -> None:
    """If one comparison is left out, its kind of damage is not found."""
    assert_caught(broken, lambda: check(lake))


def head_at_first_commit(root: Path) -> None:
    """Let `main` name its first commit, as if it had no later ones."""
    with tracelake.open(root) as lake:
        ids = [commit.id.encode() for commit in lake.log()]
    record_tests.overwrite(root, *record_tests.BRANCH, b'"head":"%s"' % ids[0], b'"head":"%s"' % ids[-1])


@pytest.mark.parametrize(
    ("broken", "damage", "finding"),
    [
        (
            Broken("a committed transaction is sealed", check_transactions, "or recorded.seal is None", ""),
            lambda root: record_tests.forget(root, "journal/main", record_key(1, 1)),
            ("missing", "journal", "transaction 1"),
        ),
        (
            Broken(
                "spans that were read are counted",
                check_counts,
                "read != sum(recorded_counts.values())",
                "False",
            ),
            lambda root: record_tests.overwrite(
                root, "journal/main", record_key(0, 0), b'"spans":4', b'"spans":5'
            ),
            ("mismatch", "journal", "transaction 0"),
        ),
        (
            Broken(
                "a table reaches the newest commit",
                ShardCheck.read_batches,
                "state.upper < transactions",
                "False",
            ),
            lambda root: record_tests.forget(root, *record_tests.SPANS_STATE),
            ("missing", "table", "spans"),
        ),
        (
            Broken(
                "the history is whole",
                history_checks._check_numbers,
                "len(numbers) < transactions - 1",
                "False",
            ),
            head_at_first_commit,
            ("missing", "commit", "branch main"),
        ),
    ],
    ids=lambda given: given.rule if isinstance(given, Broken) else "",
)
def test_what_records_are_compared_with(
    broken: Broken, damage: Callable[[Path], None], finding: tuple[str, str, str], whole: Path, tmp_path: Path
) -> None:
    """The damage of such a lake is found, and not found if the comparison is left out."""
    root = shutil.copytree(whole, tmp_path / "lake")
    damage(root)
    assert finding in record_tests.findings(root)

    def check() -> None:
        assert finding in record_tests.findings(root)

    assert_caught(broken, check)
