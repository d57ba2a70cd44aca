"""Rules of collection, of quarantine and of `verify`: if one is broken, a test of it fails.

A rule without such a test is only a wish.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

import tracelake
from tests.journal import test_protocol as protocol_tests
from tests.lake import test_verify as record_tests
from tests.lake import test_verify_mismatch as verify_tests
from tests.pipeline import test_setting_aside as aside_tests
from tests.pipeline.poison import good
from tests.versions import test_collect as collect_tests
from tests.versions.collected_world import World
from tracelake import Lake
from tracelake._errors import DamageError
from tracelake.journal.model import QuarantineRecord
from tracelake.pipeline.quarantine_actions import QuarantineActions
from tracelake.search.vectors import PLAIN
from tracelake.tasks.runners import InProcess
from tracelake.versions.gc import BEHIND
from tracelake.versions.model import Commit, Metarange, Range

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


def head_at_first_commit(root: Path) -> None:
    """Let `main` name its first commit, as if it had no later ones."""
    with tracelake.open(root) as lake:
        ids = [commit.id.encode() for commit in lake.log()]
    record_tests.overwrite(root, *record_tests.BRANCH, b'"head":"%s"' % ids[0], b'"head":"%s"' % ids[-1])
