"""Random transactions, compactions, forgetting and collections: every readable time equals a model."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.shards.modelled_shard import Lab
from tracelake._errors import ExpiredError
from tracelake.shards.leases import Lease
from tracelake.shards.protocol import forget

KEYS = st.sampled_from("abcde")
CHANGES = st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 9)), max_size=4)


class CompactionMachine(RuleBasedStateMachine):
    """One shard on files, with real parts and real tasks."""

    @initialize(buckets=st.integers(1, 3), large=st.booleans())
    def begin(self, buckets: int, large: bool) -> None:
        """Begin a shard; with `large`, every part that lost no row is large enough to be kept unchanged."""
        self.folder = tempfile.TemporaryDirectory(prefix="tracelake-model-")
        self.lab = Lab(Path(self.folder.name), buckets)
        self.patch = pytest.MonkeyPatch()
        if large:
            self.patch.setattr("tracelake.shards.compaction.COMPACTED_PART_MAX_BYTES", 1)
        self.reader: Lease | None = None
        self.upsert({"a": 0})

    def teardown(self) -> None:
        self.patch.undo()
        self.folder.cleanup()

    @rule(changes=CHANGES, together=st.booleans())
    def upsert(self, changes: dict[str, int | None], together: bool = False) -> None:
        assert self.lab.upsert(changes, together=together) is None

    @precondition(lambda self: len(self.lab.shard.state().batches) > 1)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        batches = len(self.lab.shard.state().batches)
        start = data.draw(st.integers(0, batches - 1))
        stop = data.draw(st.integers(start + 1, batches))
        with pytest.MonkeyPatch.context() as patch:
            if data.draw(st.booleans()):  # then parts of all buckets are split into parts of each
                patch.setattr("tracelake.shards.compaction.COMPACTED_AT_HAND_ROWS", 0)
            report = self.lab.compact(start, stop)
        assert report is not None
        assert report.batches == stop - start

    @rule(since=st.integers(0, 8))
    def forget(self, since: int) -> None:
        self.lab.shard.change(partial(forget, since=since))
        assert self.lab.shard.state().since < len(self.lab.model)

    @rule()
    def collect(self) -> None:
        collector = self.lab.collector()
        collector.retired()
        collector.orphans(epoch_min_s=0)
        if self.reader is None:
            assert self.lab.stored() >= self.lab.live()
            assert self.lab.shard.state().retired == ()

    @rule()
    def open(self) -> None:
        self.close()
        self.reader = Lease(self.lab.shard, self.lab.key_value)

    @precondition(lambda self: self.reader is not None)
    @rule()
    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    @invariant()
    def every_time_equals_the_model(self) -> None:
        self.lab.check()
        state = self.lab.shard.state()
        for time in range(state.since):
            with pytest.raises(ExpiredError):
                self.lab.rows(time)

    @invariant()
    def the_reader_reads_what_it_opened(self) -> None:
        if self.reader is not None:
            state = self.reader.state
            for time in range(state.since, state.upper):
                assert self.lab.read(state, time) == self.lab.model[time]

    @invariant()
    def parts_are_sorted_and_totals_right(self) -> None:
        lab = self.lab
        state = lab.shard.state()
        assert sum(ref.rows for ref in state.batches) == len(lab.model[-1])
        for ref in state.batches:
            for part in lab.shard.batch(ref).parts:
                table = pq.read_table(str(lab.objects.local_path(part.path)))
                keys = [str(key) for key in table["key"].to_pylist()]
                assert keys == sorted(keys)
                assert (part.rows, part.first_key, part.last_key) == (len(keys), keys[0], keys[-1])


CompactionMachine.TestCase.settings = settings(
    max_examples=10,
    stateful_step_count=14,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
TestCompaction = CompactionMachine.TestCase
