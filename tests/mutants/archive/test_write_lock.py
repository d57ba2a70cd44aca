"""Mutants that `tests/archive/test_write_lock.py` notices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.archive import test_write_lock
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tracking.requests import trace_id
from tracelake._errors import StorageError, TracelakeError
from tracelake.archive import archive_pass, service
from tracelake.archive.store import ArchiveStore


def test_many_are_deleted_a_few_at_a_time(make: test_write_lock.Make) -> None:
    """A deletion writes each trace's pending input for the pipeline: writers wait for a few traces at a time."""
    lake = make("trace")

    def check() -> None:
        ids = [trace_id(number) for number in range(1, 8)]
        for each in range(1, 8):
            lake.write((each, 1), commit=False)
        with test_write_lock.watched(lake) as writes:
            assert lake.archive.delete(ids) == ids
        assert len(writes.statements) == 4
        for each in range(1, 8):
            lake.write((each, 1), commit=False)
        deleted, failed = (ArchiveStore.delete, dict[str, TracelakeError]())

        def fails_at_last(self: ArchiveStore, places: Any) -> list[str]:
            if ids[6] in places:
                raise StorageError("away")
            return deleted(self, places)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArchiveStore, "delete", fails_at_last)
            assert lake.archive.delete(ids, failed.__setitem__) == ids[:6]
            assert [*failed] == ids[6:]
            with pytest.raises(StorageError, match="away"):
                lake.archive.delete(ids)
        assert lake.hot(range(1, 8)) == [7]
        assert lake.archive.delete(ids) == ids[6:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "ARCHIVE_FINALIZE_TRACES", 2)
        check()
        for rule in (
            Mutation(
                "a few at a time", service.delete_traces, rewrite("_1(_2, _3, a)", "_1(_2, _3, 10 ** 9)")
            ),
            Mutation("what fails is told", service.delete_traces, rewrite("_() - _(_)", "()")),
        ):
            assert_caught(rule, check)


@pytest.mark.parametrize(
    "broken", [Mutation("by bytes", archive_pass._pieces, rewrite("_(_)", "0"))], ids=rule_of
)
def test_what_one_transaction_clears_is_bounded(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_write_lock.test_what_one_transaction_clears_is_bounded)
