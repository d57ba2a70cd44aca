"""`verify` of a lake with an unreachable tracking store names that, and hides no other damage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import pytest

import tracelake
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite
from tests.tracking.requests import request
from tracelake import Finding, StorageError
from tracelake.lake import backup
from tracelake.lake.backup import Verifier
from tracelake.tables.builtin import TABLE_TRACES
from tracelake.tasks.runners import InProcess
from tracelake.tracking.location import PLACE
from tracelake.tracking.verify import DATABASE

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


def make_lake(folder: Path) -> Path:
    """Make a lake that has committed two traces of its hot tier, and reset the process's open stores."""
    with tracelake.init(folder / "made") as lake:
        lake.hot.set_up().write([request((1, 1), (2, 1))])
        with closing(lake.pipeline(runner=InProcess())) as pipeline:
            pipeline.run_once()
        assert lake.verify().ok
    return (folder / "made").rename(folder / "lake")


def findings(root: Path) -> tuple[Finding, ...]:
    """Verify the lake and return the findings."""
    with tracelake.open(root) as lake:
        return lake.verify().findings


def check_away(folder: Path) -> None:
    """Damage a part while the store accepts no connection."""
    root = make_lake(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACELAKE_TRACKING", NOWHERE)
        (away,) = findings(root)
        assert (away.kind, away.what, away.path) == ("missing", DATABASE, PLACE)
        assert "was not verified" in away.detail
        part = next(root.glob(f"shards/{TABLE_TRACES.name}/parts/*/*.parquet"))
        part.write_bytes(part.read_bytes()[:-1])
        damaged, again = findings(root)
    assert (damaged.what, again) == ("part", away)


def check_gone(folder: Path) -> None:
    """Remove the store, as in a backup of the wrong files."""
    root = make_lake(folder)
    (root / PLACE).unlink()
    (root / "tracking.db").unlink()
    (gone,) = findings(root)
    assert (gone.kind, gone.what, gone.path) == ("missing", DATABASE, PLACE)
    with tracelake.init(folder / "other") as lake:
        assert lake.verify().ok, "without a hot tier"


def check_in_the_middle(folder: Path) -> None:
    """Make the store unreachable after the first finding."""
    wrong = Finding("damaged", "archived trace", "a", "b")

    def broken(*_: object) -> Iterator[Finding]:
        yield wrong
        raise StorageError("the connection is gone")

    root = make_lake(folder)
    for check in ("check_store", "check_archive"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backup, check, broken)
            first, away = findings(root)
        assert first == wrong
        assert (away.what, "the connection is gone" in away.detail) == (DATABASE, True)


def check_tables_beside(folder: Path) -> None:
    """Make tables disagree while the store is unreachable."""
    wrong = Finding("mismatch", "table", "traces", "another sum")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup, "check_built_in", lambda _view: [wrong])
        root = make_lake_that_differs(folder)
        patch.setenv("TRACELAKE_TRACKING", NOWHERE)
        away, differs = findings(root)
    assert (away.what, differs) == (DATABASE, wrong)


def make_lake_that_differs(folder: Path) -> Path:
    """Make a lake without comparing its tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup, "check_built_in", lambda _view: [])
        return make_lake(folder)


def test_a_store_that_is_away_hides_nothing(tmp_path: Path) -> None:
    """Minutes of reading once ended in the store's error, and did not report a damaged part."""
    folders = (tmp_path / str(number) for number in count())
    check_away(next(folders))
    check_in_the_middle(next(folders))
    check_gone(next(folders))
    check_tables_beside(next(folders))
    for broken, check in (
        (
            Mutation(
                "gone is a finding",
                Verifier._check_tracking,
                rewrite("any((_1.a.b(_2) for _1 in _3.c()))", "not any((_1.a.b(_2) for _1 in _3.c()))"),
            ),
            check_gone,
        ),
        (
            Mutation(
                "away is a finding",
                Verifier._check_tracking,
                rewrite(
                    """
                    try: ...
                    except _1 as a: ...
                    except _ as a: ...
                    """,
                    """
                    try: ...
                    except _1 as a: ...
                    except ValueError as a: ...
                    """,
                ),
            ),
            check_away,
        ),
        (
            Mutation("what was read is told", Verifier._check_store, drop("_._(a)")),
            check_in_the_middle,
        ),
    ):
        assert_caught(broken, partial(check, next(folders)))
