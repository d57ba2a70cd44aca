"""Outputs: each has a transaction once, whatever fails between two of them, and readers see it once all have it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import tracelake
from tests.pipeline.poison import Poisoned, good, names, poisoned
from tracelake import Lake
from tracelake._errors import StorageError
from tracelake.journal.model import QuarantineRecord
from tracelake.pipeline.outputs.external import Publication, SealedTransaction
from tracelake.pipeline.publish import Outputs
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tasks.runners import InProcess


class Topic:
    """An output of a foreign system: rows and marker in one step; it fails once, before or after that."""

    def __init__(self, fails: str = "") -> None:
        self.marker = -1
        self.rows: dict[int, int] = {}
        self.spans: Shard | None = None
        self._fails = fails

    def holds(self, transaction: int) -> bool:
        """Return whether its marker is at a transaction or beyond it."""
        return self.marker >= transaction

    def publish(self, sealed: SealedTransaction, publication: Publication) -> None:
        """Write the transaction's rows of table `spans`, unless they exist."""
        del publication
        t = sealed.transaction
        self._fail("before")
        if not self.holds(t):
            assert self.marker == t - 1
            assert self.spans is not None
            batch = self.spans.batch_at(t)
            assert batch is not None
            self.marker, self.rows[t] = t, sum(part.rows for part in batch.parts)
        self._fail("after")

    def skip(self, aside: QuarantineRecord, publication: Publication) -> None:
        """Move the marker."""
        del publication
        self.marker = max(self.marker, aside.transaction)

    def _fail(self, when: str) -> None:
        if self._fails == when:
            self._fails = ""
            raise StorageError("the topic cannot be reached")


@pytest.fixture
def lake() -> Iterator[Lake]:
    """Return a new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


def add(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an output before the commit."""
    init = Outputs.__init__

    def with_topic(self: Any, key_value: KeyValueStore, objects: ObjectStore, *rest: Any) -> None:
        init(self, key_value, objects, *rest)
        topic.spans = Shard("spans", key_value, objects)
        self._before_commit = (*self._before_commit, topic)

    monkeypatch.setattr(Outputs, "__init__", with_topic)


@pytest.mark.parametrize("fails", ["", "before", "after"])
def test_another_output_holds_each_transaction_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """A run that ends there leaves readers on the last commit; the next run continues without duplicates."""
    topic = Topic(fails)
    add(topic, monkeypatch)
    lake.objects.put("inbox/0.segment", good(0))
    if fails:
        with pytest.raises(StorageError, match="the topic"):
            lake.pipeline(runner=InProcess()).run_once()
        assert lake.log() == []
    lake.pipeline(runner=InProcess()).run_once()
    lake.objects.put("inbox/1.segment", good(1))
    lake.pipeline(runner=InProcess()).run_once()
    assert topic.rows == {0: 1, 1: 1}
    assert names(lake) == {0, 1}
    assert lake.verify().findings == ()


def test_another_output_goes_past_what_is_set_aside(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output gets no rows of a quarantined transaction, and all rows of those behind it."""
    topic = Topic()
    add(topic, monkeypatch)
    lake.objects.put("inbox/0.segment", poisoned(0))
    lake.objects.put("inbox/1.segment", good(1))
    pipeline = lake.pipeline(runner=Poisoned("merge"))
    pipeline.run_once()
    assert names(lake) == {1}
    assert sum(topic.rows.values()) == 1
    aside = {number for number in range(topic.marker + 1) if number not in topic.rows}
    assert aside, "it went past some"
    assert lake.verify().findings == ()


@pytest.mark.parametrize("missing", range(4))
def test_all_begins_and_only_the_commit_is_missing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    """A transaction has begun if any output before the commit has it; all must have it to skip the merge."""
    outputs = Outputs(lake._opened.key_value, lake.objects, 2)
    several = outputs._before_commit
    assert len(several) == 3
    for number, output in enumerate(several):
        monkeypatch.setattr(output, "holds", lambda _, held=number != missing: held)
    assert outputs.only_commit_missing(0) == (missing == 3)
    assert outputs.is_started(0)
