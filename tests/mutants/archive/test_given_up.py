"""Mutants that `tests/archive/test_given_up.py` notices."""

from __future__ import annotations

from functools import partial

import pytest

from tests.archive import test_given_up
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tracking.requests import trace_id
from tracelake._errors import DamageError, NotFoundError
from tracelake.archive import service
from tracelake.archive.repositories import read_archived
from tracelake.hot import tier
from tracelake.hot.tier import HotTier, HotTraces
from tracelake.storage import ObjectStore
from tracelake.versions.branch_store import MAIN


@pytest.mark.parametrize("layout", ["trace", "pack"])
def test_what_was_given_up_and_archived_is_read_whole(make: test_given_up.Make, layout: str) -> None:
    """A trace is never read shorter than its archive has it; missing spans are an error (A14)."""
    lake = make(layout)
    reads = list[str]()

    def check(first: int) -> None:
        test_given_up.given_up(lake, first)
        del reads[:]
        assert test_given_up.spans(lake, first) == ["span 1", "span 2"]
        assert test_given_up.spans(lake, first + 1) == ["span 1"]
        assert lake.lake.trace(trace_id(first + 2)).spans[0]["end_ns"] == test_given_up.LATER
        assert len(reads) == 3
        assert test_given_up.spans(lake, first + 3) == ["span 1"]
        assert len(lake.lake.trace(trace_id(first + 3), tiers=True).spans) == 1
        assert len(reads) == 3, "the tables have it"
        assert lake.lake.within("default").trace(trace_id(first + 1)).summary["span_count"] == 1
        with pytest.raises(NotFoundError):
            lake.lake.within("other").trace(trace_id(first + 1))

    def noted(objects: ObjectStore, location: str, size_bytes: int, sha256: str) -> bytes:
        reads.append(location)
        return read_archived(objects, location, size_bytes, sha256)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "read_archived", noted)
        check(1)
        assert_caught(
            Mutation("its archive is read", HotTier._here, rewrite("a.b(c)", "a.b('')")), lambda: check(11)
        )
        assert_caught(
            Mutation(
                "of no other", HotTier._here, rewrite("_1(_2) or (_3 and _)", "_1(_2) or (_3 and _1(_2))")
            ),
            lambda: check(21),
        )
    for info in list(lake.lake.objects.list("archive/")):
        lake.lake.objects.delete(info.path)
    with pytest.raises(DamageError, match="is missing"):
        test_given_up.spans(lake, 1)
    assert test_given_up.spans(lake, 4) == ["span 1"]


@pytest.mark.parametrize("layout", ["trace", "pack"])
def test_what_a_revert_took_of_a_trace_is_read(
    make: test_given_up.Make, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """A hot trace with many parts and an archived one are read completely if `main` has less of them."""
    lake = make(layout)
    main = lake.lake.branch(MAIN)

    def check(first: int) -> None:
        lake.write((first, 1), (first + 1, 1), (first + 3, 1))
        lake.write((first, 2), (first + 1, 2), (first + 2, 1))
        main.revert(main.log()[0].id)
        for hot in (True, False):
            assert (
                test_given_up.spans(lake, first)
                == test_given_up.spans(lake, first + 1)
                == ["span 1", "span 2"]
            )
            assert test_given_up.spans(lake, first + 2) == test_given_up.spans(lake, first + 3) == ["span 1"]
            if hot:
                assert lake.archive.run().fates == {"archived": 4}
        assert lake.archive.delete([trace_id(first + 2)])
        with pytest.raises(NotFoundError):
            test_given_up.spans(lake, first + 2)

    monkeypatch.setattr(tier, "HOT_TRACE_PARTS", 0)
    check(16)
    rules = (
        Mutation(
            "it is noticed",
            HotTier._rows,
            rewrite(
                "max((_1[_2] for _2 in _1 if _(_3)), a=0)",
                "0 * max((_1[_2] for _2 in _1 if _2.startswith(_3)), a=0)",
            ),
        ),
        Mutation("all parts are read", HotTraces._of_large, rewrite("_1 or _", "_1")),
        Mutation("its archive is read", HotTier._here, rewrite("_ and _1", "_1")),
    )
    for number, rule in enumerate(rules, 2):
        assert_caught(rule, partial(check, 16 * number))


@pytest.mark.parametrize(
    "broken",
    [Mutation("it is looked at again", service.read_trace, rewrite("_1(_2, _3, _4)", "not _1(_2, _3, _4)"))],
    ids=rule_of,
)
def test_who_restores_it_meanwhile_takes_nothing_away(
    broken: Mutation, make: test_given_up.Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken, lambda: test_given_up.test_who_restores_it_meanwhile_takes_nothing_away(make, monkeypatch)
    )
