"""The tags of an experiment count for the traces of its workspace, and those of "0" for all (A8)."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tests.archive.place import HotLake
from tests.archive.test_archive import tag
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.server.walls import A, B, spans
from tracelake.archive import candidates
from tracelake.archive.candidates import Candidates
from tracelake.archive.retention import ARCHIVE_NOW_TAG
from tracelake.tracking.annotations import Annotations


def check(hot: HotLake, first: int) -> None:
    """Check the rule with traces of two teams in an experiment of one of them."""
    experiment = Annotations(hot.tracking, B).create_experiment(f"of {first}", B)
    trace_of = {A: f"{first:032x}", B: f"{first + 1:032x}"}
    for workspace, trace_id in trace_of.items():
        hot.tracking.write([replace(spans(workspace, trace_id, 1), experiment_id=experiment)])
    hot.commit()
    tag(hot, ARCHIVE_NOW_TAG, "{}", experiment=experiment)

    def due(experiment_id: str) -> dict[str, bool]:
        """Return the workspaces for which an experiment's tags count."""
        every = Candidates(hot.tracking).hot(hot.archive.settings(), time.time_ns())
        return {each.workspace: each.is_now for each in every if each.experiment_id == experiment_id}

    assert due(experiment) == {A: False, B: True}
    hot.archive.run()
    infos = hot.tracking.traces(list(trace_of.values()))
    assert {workspace: infos[trace_id].is_hot for workspace, trace_id in trace_of.items()} == {
        A: True,
        B: False,
    }
    tag(hot, ARCHIVE_NOW_TAG, "{}", experiment=experiment)
    hot.archive.run()
    assert experiment not in {marked for marked, _ in hot.archive.marks()}, "nothing of its own is hot"
    hot.tracking.write([spans(A, f"{first + 2:032x}", 1)])
    tag(hot, ARCHIVE_NOW_TAG, "{}")
    assert due("0") == {A: True}, "all share this one"


def test_tags_of_an_experiment_count_for_its_workspace(tmp_path: Path) -> None:
    """A sender of spans may name any experiment; the test fails for each broken part of the rule."""
    lake = HotLake(tmp_path / "lake")
    with closing(lake.tracking), closing(lake.lake):
        check(lake, 1)
        for number, broken in enumerate(
            [
                Mutation("of whom tags are", candidates._counting, rewrite("_1 if _ else _", "_1")),
                Mutation(
                    "the one of all",
                    Candidates._tags,
                    rewrite("_1((_2 == _3, None), a=_4(_5, _6))", "_1((_2 == _3, _6), a=_4(_5, _6))"),
                ),
                Mutation(
                    "what is hot of others",
                    Candidates.done_where_nothing_is_hot,
                    rewrite("_1.a and (_ or _)", "_1.a"),
                ),
            ],
            1,
        ):
            assert_caught(broken, lambda: check(lake, 10 * number))  # noqa: B023
