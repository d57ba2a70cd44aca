"""Mutants that `tests/archive/test_archive.py` notices."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import zstandard
from sqlalchemy import update

from tests.archive import test_archive
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tracking.requests import trace_id
from tracelake._errors import NotFoundError
from tracelake.archive import protocol
from tracelake.archive import repositories as archive_tables
from tracelake.archive import service as restoring
from tracelake.archive.repositories import TablesRepository, read_archived
from tracelake.archive.service import LakeArchive
from tracelake.archive.store import ArchiveStore
from tracelake.tables.upsert_rule import drop_duplicates
from tracelake.tracking.schema import trace_parts


@pytest.mark.parametrize(
    "broken", [Mutation("any archive will do", protocol.may_restore, rewrite("_ == _", "True"))], ids=rule_of
)
def test_a10_a_restore_that_was_overtaken_puts_nothing_old_back(
    broken: Mutation, make: test_archive.Make
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken, lambda: test_archive.test_a10_a_restore_that_was_overtaken_puts_nothing_old_back(make)
    )


@pytest.mark.parametrize("layout", ["trace", "pack"])
def test_a10_of_two_restores_none_takes_the_other_for_damage(make: test_archive.Make, layout: str) -> None:
    """The first restore deletes the object. The other one reads again, and reports that the trace is hot, or gone
    (A10)."""

    def check(others: str) -> None:
        lake = make(layout)
        lake.write((1, 1))
        lake.archive.run()

        def late(*given: Any) -> bytes:
            patch.undo()
            assert (
                lake.archive.restore(trace_id(1))
                if others == "restore"
                else lake.archive.delete([trace_id(1)])
            )
            return read_archived(*given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(restoring, "read_archived", late)
            if others == "restore":
                assert not lake.archive.restore(trace_id(1))
            else:
                with pytest.raises(NotFoundError):
                    lake.archive.restore(trace_id(1))

    for others in ("restore", "delete"):
        check(others)
        rule = Mutation(
            "what is gone may be nobody's loss", restoring.restore_trace, rewrite("_(_._, _, _)", "True")
        )
        assert_caught(rule, partial(check, others))


@pytest.mark.parametrize(
    "broken", [Mutation("it begins anew", ArchiveStore.restore, rewrite("_ + 1", "0"))], ids=rule_of
)
def test_a12_an_upload_of_an_earlier_life_is_never_finalized(
    broken: Mutation, make: test_archive.Make
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_archive.test_a12_an_upload_of_an_earlier_life_is_never_finalized(make))


@pytest.mark.parametrize(
    "broken", [Mutation("each life is another", protocol.finalize, rewrite("_ != _", "False"))], ids=rule_of
)
def test_a12_an_upload_of_a_trace_that_was_deleted_and_came_again_is_never_finalized(
    broken: Mutation, make: test_archive.Make
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_archive.test_a12_an_upload_of_a_trace_that_was_deleted_and_came_again_is_never_finalized(
            make
        ),
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "late spans are nothing to a restore", ArchiveStore.restore, rewrite("_1 != _", "_1 == object()")
        )
    ],
    ids=rule_of,
)
def test_a18_a_late_span_while_it_is_restored(broken: Mutation, make: test_archive.Make) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_archive.test_a18_a_late_span_while_it_is_restored(make))


@pytest.mark.parametrize("layout", test_archive.LAYOUTS)
def test_a6_so_is_one_that_can_be_unpacked_and_not_decoded(make: test_archive.Make, layout: str) -> None:
    """Layout `lake` notices such a trace only when it compares with the tables; other layouts could not restore it
    (A6)."""

    def check() -> None:
        lake = make(layout)
        lake.write((1, 1), (2, 1))
        of_first = (trace_parts.c.trace_id == trace_id(1), trace_parts.c.lake == lake.tracking.lake)
        odd = bytes.fromhex(trace_id(1)) + b"no trace"
        no_trace = {"payload": zstandard.compress(odd), "size_bytes": len(odd)}
        with lake.tracking.database.writing() as connection:
            connection.execute(update(trace_parts).where(*of_first).values(**no_trace))
        assert lake.archive.run().fates == {"archived": 1, "malformed": 1}
        assert lake.archive.run().fates == {}
        assert lake.archive.space().failed_traces == 1

    check()
    if layout != "lake":
        assert_caught(Mutation("decoded before", ArchiveStore.begin, rewrite("a != _", "False")), check)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("each has its outcome", LakeArchive.delete, rewrite("a = b", "raise")),
        Mutation("it stays", restoring._path, rewrite("raise a", "return ''")),
        Mutation("others go first", restoring.delete_traces, rewrite("_[_] = a", "raise")),
        Mutation("it is told", restoring._report, rewrite("raise _", "continue")),
    ],
    ids=rule_of,
)
def test_a_repository_that_cannot_be_opened_stops_nothing_beside_it(
    broken: Mutation, make: test_archive.Make
) -> None:
    """The check fails for each broken rule."""
    assert_caught(
        broken, lambda: test_archive.test_a_repository_that_cannot_be_opened_stops_nothing_beside_it(make)
    )


def test_a17_nothing_goes_that_the_tables_do_not_hold(
    make: test_archive.Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the pipeline stops, a row differs, or `main` is reverted during a pass, the trace stays hot (A17)."""
    lake = make("lake")
    lake.write((1, 1), (1, 2), commit=False)
    assert lake.archive.run().fates == {"waiting": 1}
    lake.commit()
    tables = lake.archive._tables
    spans, transaction = (tables.spans, tables.transaction)

    def check() -> None:
        monkeypatch.setattr(tables, "spans", lambda ids, _: (spans(ids)[0].slice(0, 0), 0))
        assert lake.archive.run().fates == {"waiting": 1}
        monkeypatch.setattr(tables, "spans", lambda ids, _: (test_archive._altered(spans(ids)[0]), 0))
        assert lake.archive.run().fates == {"waiting": 1}
        monkeypatch.setattr(tables, "spans", lambda ids, _: (spans(ids)[0].take([0, 0]), 0))
        assert lake.archive.run().fates == {"waiting": 1}, "as many rows are not all of them"
        monkeypatch.setattr(tables, "spans", spans)
        monkeypatch.setattr(tables, "transaction", lambda: -1)
        assert lake.archive.run().fates == {"waiting": 1}
        monkeypatch.setattr(tables, "transaction", transaction)

    check()
    for broken in (
        Mutation("main is not asked again", TablesRepository.holds, rewrite("return _", "return True")),
        Mutation(
            "what is the same is there", archive_tables._are_same, rewrite("return _1(_)", "return _1(True)")
        ),
        Mutation("what is equal is there", TablesRepository._differences, rewrite("_1 and _", "_1")),
        Mutation(
            "rows are counted", TablesRepository._differences, rewrite("not (_1 >= _2)._()", "len(_1) == _2")
        ),
        Mutation("what is there is equal", drop_duplicates, rewrite("not _", "False")),
    ):
        assert_caught(broken, check)
        monkeypatch.undo()
        lake.archive.restore(trace_id(1))
    assert lake.archive.run().fates == {"archived": 1}
