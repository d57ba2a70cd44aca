"""Mutants that `tests/server/test_walls.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.server import test_walls
from tests.server.test_walls import walls
from tests.server.walls import HOT_OF_B, OF_B
from tracelake.hot import tier
from tracelake.lake import annotations as lake_annotations
from tracelake.otlp import partition
from tracelake.search import facets
from tracelake.server import guard, http_policy, otlp_http
from tracelake.server import search as search_pages
from tracelake.tables import builtin, predicates
from tracelake.tracking import mlflow_search, store


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("nobody is led to what is refused", http_policy.may_send, rewrite("_1 or _", "_1 or True")),
        Mutation("people get a page", guard._wants_page, rewrite("_ in _1", "'none' in _1")),
        Mutation("programs get JSON", guard._wants_page, rewrite("return _", "return True")),
    ],
    ids=rule_of,
)
def test_broken_pages_are_caught(walls: test_walls.Walls, broken: Mutation) -> None:
    """The checks fail if any rule of pages is removed."""
    assert_caught(broken, lambda: test_walls.check_pages(walls))


def test_pages_that_lead_to_others_are_caught(walls: test_walls.Walls) -> None:
    """The previous page begins one page size earlier."""
    broken = Mutation("where it begins", search_pages._before, rewrite("_1 - _", "_1"))
    assert_caught(broken, lambda: test_walls.check_pages_of_hits(walls))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "tags of the archive",
            lake_annotations.check_experiment_tag,
            rewrite("return _1 in _2", "return _1 in () and _2"),
        )
    ],
    ids=rule_of,
)
def test_an_experiment_is_made_with_tags_that_its_key_may_set(
    broken: Mutation, walls: test_walls.Walls
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_walls.test_an_experiment_is_made_with_tags_that_its_key_may_set(walls))


@pytest.mark.parametrize(
    ("broken", "part"),
    [
        (
            Mutation("the lake of a request", http_policy.request_lake, rewrite("_ is None", "True")),
            "services",
        ),
        (Mutation("SQL", test_walls.SEES._views, rewrite("_(_, _1, _)", "_1")), "services"),
        (Mutation("sums", builtin.workspace_table_sql, rewrite("_ == _", "False")), "/api/v1/traces"),
        (
            Mutation("spans of a trace", test_walls.SEES.trace_spans, rewrite("_1(..., a)", "_1(..., None)")),
            test_walls.TRACE,
        ),
        (
            Mutation(
                "hot spans",
                tier.HotTier._hot,
                rewrite("_1(_2(_3, _4, _5, _, _6), _)", "_1(_2(_3, _4, _5, None, _6), None)"),
            ),
            test_walls.TRACE,
        ),
        (Mutation("beginnings of ids", test_walls.SEES.full_id, rewrite("_ and _1", "False and _1")), None),
        (Mutation("hits", test_walls.SEES._rows_of, rewrite("a(b, _._)", "b")), test_walls.SEARCH),
        (Mutation("totals", facets.only, rewrite("_1 = (_, _2)", "_1 = _2")), None),
        (Mutation("likeness", test_walls.LIKE, rewrite("_1(_2(_3, _4), _)", "_1(_2(_3, _4), None)")), OF_B),
        (
            Mutation(
                "hot likeness", test_walls.LIKE, rewrite("_1(_2(_3, _4, _5), _)", "_1(_2(_3, _4, _5), None)")
            ),
            HOT_OF_B,
        ),
        (Mutation("completions", facets.OneWorkspace.has, rewrite("_1 > 0", "_1 >= 0")), "completions"),
        (Mutation("tags", test_walls.SAYS._here, rewrite("if _: ...", "if True: ...")), test_walls.OF_MLFLOW),
        (
            Mutation(
                "experiments",
                test_walls.SAYS.experiment,
                rewrite("self.a in (None, _1._)", "self.a is not _1"),
            ),
            test_walls.OF_MLFLOW,
        ),
        (
            Mutation("MLflow", mlflow_search.TraceSearch._workspace_condition, rewrite("_ is None", "True")),
            test_walls.OF_MLFLOW,
        ),
        (Mutation("infos", store.TrackingStore.infos, rewrite("_ is None", "True")), test_walls.OF_MLFLOW),
        (
            Mutation("changes", test_walls.SAYS._check_own, rewrite("_1 or not any(_)", "_1")),
            test_walls.OF_MLFLOW,
        ),
        (
            Mutation(
                "searches of experiments",
                mlflow_search.ExperimentSearch.__init__,
                rewrite("if a is not None: ...", "pass"),
            ),
            test_walls.OF_MLFLOW,
        ),
        (
            Mutation("ids", lake_annotations.LakeAnnotations._resolve, rewrite("a(b, c)", "b")),
            test_walls.OF_MLFLOW,
        ),
    ],
    ids=rule_of,
)
def test_broken_walls_are_noticed(walls: test_walls.Walls, broken: Mutation, part: str | None) -> None:
    """The test fails for each read path without its filter."""

    def check() -> None:
        if part is None:
            test_walls.check_numbers(walls)
        elif part in test_walls.EVERY_TRACE:
            test_walls.check_likeness(walls, f"{part}-{2:016x}")
        else:
            test_walls.check_no_secret(walls, part)

    assert_caught(broken, check)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "what is not listed is of the whole lake",
            http_policy.is_divided,
            rewrite(
                "any((_1 in _2 and _3(_4, _5) for _2, _5 in _6))",
                "True or any((_1 in _2 and _3(_4, _5) for _2, _5 in _6))",
            ),
        ),
        Mutation("the guard asks", guard.Guard.__call__, rewrite("not _", "False")),
        Mutation("queries read tables alone", predicates.of_tables, rewrite("_ == _", "False")),
    ],
    ids=rule_of,
)
def test_broken_doors_are_noticed(walls: test_walls.Walls, broken: Mutation) -> None:
    """The test fails for each broken rule on refusals."""

    def check() -> None:
        test_walls.check_every_route(walls)
        test_walls.test_no_query_leaves_the_filter_out(walls)

    assert_caught(broken, check)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("none is given", partition.placed, rewrite("not _", "False")),
        Mutation("others are left out", partition.placed, rewrite("_1 and _", "_1 and True")),
        Mutation("the door asks", otlp_http.decode_request, rewrite("_ is None", "True")),
    ],
    ids=rule_of,
)
def test_broken_doors_for_spans_are_noticed(tmp_path: Path, broken: Mutation) -> None:
    """The test fails for each broken rule on write targets."""
    assert_caught(
        broken,
        lambda: test_walls.test_a_team_writes_into_its_workspace_alone(tmp_path, "application/x-protobuf"),
    )
