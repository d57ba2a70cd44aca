"""Mutants that `tests/archive/test_lock_order.py` notices."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import pytest
from sqlalchemy import Connection

from tests.archive import test_lock_order
from tests.archive.test_lock_order import store
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.tracking.requests import request
from tracelake.archive.store import ArchiveRows, ArchiveStore
from tracelake.tracking.outbox import Outbox, keep
from tracelake.tracking.schema import outbox as outbox_rows
from tracelake.tracking.schema import trace_info
from tracelake.tracking.store import TrackingStore


def _rows_first(archive: ArchiveStore, connection: Connection, trace_ids: Collection[str]) -> None:
    keep(connection, archive.lake, trace_ids)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "archivers lock traces by id",
            ArchiveRows._infos,
            rewrite("_1(_._)", "_1(desc())", desc=trace_info.c.trace_id.desc),
        ),
        Mutation(
            "who trims locks traces by id",
            Outbox._locked,
            rewrite("_1.a(_2._).b()", "_1.a(desc()).b()", desc=trace_info.c.trace_id.desc),
        ),
    ],
    ids=rule_of,
)
def test_archivers_and_who_trims_lock_traces_in_one_order(broken: Mutation, store: TrackingStore) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken, lambda: test_lock_order.test_archivers_and_who_trims_lock_traces_in_one_order(store)
    )


def test_who_trims_and_who_deletes_lock_traces_first_and_then_rows_by_number(store: TrackingStore) -> None:
    """In either order both finish. Otherwise each holds the lock that the other waits for."""
    archive, outbox = (ArchiveStore(store), Outbox(store))

    def delete(location: str | None) -> list[str]:
        return archive.delete(dict.fromkeys(test_lock_order.IDS, (location, "")))

    def check(done: Callable[[list[int]], None], location: str | None, is_first: bool) -> None:
        delete(None)
        delete(test_lock_order.LOCATION)
        outbox.trim([row.sequence for row in outbox.waiting()])
        if location:
            store.write([request(*((number, 1) for number in (1, 2, 3)))])
            outbox.trim([row.sequence for row in outbox.waiting()])
            with store.database.writing() as connection:
                connection.execute(test_lock_order.ARCHIVED)
        for number in (1, 2, 3):
            store.write([request((number, 2))])
        first, middle, last = (row.sequence for row in outbox.waiting())
        gone: list[str] = []
        works = [partial(done, [last, middle, first]), lambda: gone.extend(delete(location))]
        test_lock_order.at_once(
            store, test_lock_order.MIDDLE_ROW.bindparams(of=middle), *(works if is_first else reversed(works))
        )
        assert sorted(gone) == test_lock_order.IDS
        assert outbox.waiting() == []

    deletes_first = (
        (
            Mutation(
                "who trims locks rows by number",
                Outbox._locked_rows,
                rewrite("_1.a(_._)", "_1.a(desc())", desc=outbox_rows.c.sequence.desc),
            ),
            None,
        ),
        (
            Mutation(
                "who deletes locks rows by number",
                keep,
                rewrite("_1.a(_2._).b()", "_1.a(desc()).b()", desc=outbox_rows.c.sequence.desc),
            ),
            None,
        ),
        (
            Mutation(
                "who deletes locks traces before rows",
                ArchiveStore.delete,
                rewrite("a = self.b(c, d)", "rows(self, c, d)\na = self.b(c, d)", rows=_rows_first),
            ),
            test_lock_order.LOCATION,
        ),
    )
    for broken, location in deletes_first:
        assert_caught(broken, partial(check, outbox.trim, location, is_first=False))
    trims = Mutation(
        "who trims locks traces before rows",
        Outbox._trim,
        rewrite("a = self.b(c, d, _1)\nself.e(c, d)", "self.e(c, d)\na = self.b(c, d, _1)"),
    )
    assert_caught(trims, partial(check, outbox.trim, test_lock_order.LOCATION, is_first=True))
    gives_up = Mutation(
        "who gives up locks traces before rows", Outbox.give_up, rewrite("_\n_1 = _2", "_2\n_1 = _2")
    )
    assert_caught(gives_up, partial(check, outbox.give_up, None, is_first=True))
    for is_first in (True, False):
        check(outbox.give_up, None, is_first)
        check(outbox.trim, None, is_first)
        check(outbox.trim, test_lock_order.LOCATION, is_first)


@pytest.mark.parametrize(
    "broken",
    [Mutation("rows lose the parts that tell them", ArchiveStore.delete, drop("a(...)"))],
    ids=rule_of,
)
def test_what_comes_while_a_deletion_waits_is_read_by_the_pipeline(
    broken: Mutation, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_lock_order.test_what_comes_while_a_deletion_waits_is_read_by_the_pipeline(
            store, monkeypatch
        ),
    )
