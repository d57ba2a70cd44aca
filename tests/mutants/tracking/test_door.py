"""Mutants that `tests/tracking/test_door.py` notices."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import text, update

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.tracking import test_door
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import LimitError, StorageError, UsageError
from tracelake.server.otlp_http import experiment_of
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.ingest_queue import TrackingDoor
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.schema import ARCHIVE_REPO, INCOMPLETE, trace_info
from tracelake.tracking.store import TrackingStore


def test_what_no_index_has_room_for_is_refused_alone(store: TrackingStore) -> None:
    """Two names too long for one PostgreSQL key are an error of the request, not an unreachable store."""
    name, experiment_id = (
        test_door.letters(1, limits.TRACKING_NAME_MAX_CHARS),
        test_door.letters(2, limits.TRACKING_KEY_MAX_CHARS),
    )
    numbers = iter(range(1, 1000))

    def check() -> None:
        one, long, other = (next(numbers), next(numbers), next(numbers))
        with closing(TrackingDoor(store)) as door:
            too_long = replace(request((long, 1), workspace=name), experiment_id=experiment_id)
            answers = test_door.stored(door, request((one, 1)), too_long, request((other, 1)))
        assert [answers[0], answers[2]] == [None, None]
        assert answers[1] is None if store.database.is_sqlite else isinstance(answers[1], UsageError)
        assert {trace_id(one), trace_id(other)} <= store.traces([trace_id(one), trace_id(other)]).keys()

    check()
    if not store.database.is_sqlite:
        broken = Mutation(
            "it is of the store", TrackingDatabase._failures, rewrite("if _1(_): ...", "if _1('none'): ...")
        )
        assert_caught(broken, check)


def test_the_longest_names_that_come_in_can_change_places(store: TrackingStore) -> None:
    """Later metadata of a trace is in its key too: a mark or a size never makes the key longer than the limit."""

    def check() -> None:
        for characters in range(limits.TRACKING_KEY_MAX_CHARS, 0, -1):
            try:
                experiment_id = experiment_of(test_door.letters(3, characters))
                break
            except LimitError:
                continue
        brought = request((characters, 1), workspace=test_door.letters(4, limits.TRACKING_NAME_MAX_CHARS))
        outbox = Outbox(store)
        assert store.write([replace(brought, experiment_id=experiment_id)]) == [None]
        outbox.give_up([row.sequence for row in outbox.waiting()])
        assert store.infos([trace_id(characters)])[trace_id(characters)]["archival_failure"] == INCOMPLETE
        moved = update(trace_info).values(spans_location=ARCHIVE_REPO, archive_bytes=2**62)
        with store.database.writing() as connection:
            connection.execute(moved.where(trace_info.c.trace_id == trace_id(characters)))

    check()
    if not store.database.is_sqlite:
        broken = Mutation("an id is short", experiment_of, rewrite("len(_._()) > _", "False"))
        assert_caught(broken, check)


def test_a_table_that_is_not_to_be_had_is_of_the_store(store: TrackingStore) -> None:
    """A missing table, or one without permissions, causes a retryable error, never a permanent refusal."""

    def rename(before: str, after: str) -> None:
        with store.database.writing() as connection:
            connection.execute(text(f"ALTER TABLE {before} RENAME TO {after}"))

    def check() -> None:
        rename("tracelake_outbox", "elsewhere")
        try:
            with closing(TrackingDoor(store)) as door, pytest.raises(StorageError, match="tracelake_outbox"):
                test_door.stored(door, request((1, 1)), request((2, 1)))
            with pytest.raises(StorageError, match="cannot read"):
                Outbox(store).waiting()
        finally:
            rename("elsewhere", "tracelake_outbox")
        assert store.write([request((1, 1))]) == [None]

    check()
    if not store.database.is_sqlite:
        broken = Mutation(
            "it is of the store", TrackingDatabase._failures, rewrite("not _1(_)", "not _1('none')")
        )
        assert_caught(broken, check)
