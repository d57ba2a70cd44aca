"""What a pipeline works with."""

from __future__ import annotations

from dataclasses import dataclass

from tracelake.journal.clients import Clients
from tracelake.journal.known import KnownInputs
from tracelake.journal.store import Journal
from tracelake.journal.suspects import Suspects
from tracelake.pipeline.fitting import Fitting
from tracelake.pipeline.index_build import Builder
from tracelake.pipeline.index_merge import IndexMerger
from tracelake.pipeline.near import runners
from tracelake.pipeline.outputs.added import AddedOutputs
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.settling import Settling
from tracelake.pipeline.sources.registry import SourceRegistry
from tracelake.pipeline.tries import Tries
from tracelake.pipeline.unread import Unread
from tracelake.replicas.account import BatchCounts
from tracelake.search.vectors import IndexSettings
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.maintenance import Maintainer
from tracelake.tasks.runners import TaskRunner


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a pipeline works with."""

    journal: Journal
    clients: Clients
    sources: SourceRegistry
    suspects: Suspects
    outputs: Outputs
    settling: Settling
    objects: ObjectStore
    buckets: int
    runner: TaskRunner
    maintainer: Maintainer
    merger: IndexMerger
    tries: Tries
    maintenance_tries: Tries
    """Notes of their own: maintenance may be done beside transactions."""
    unread: Unread
    fitting: Fitting | None
    """None: transactions take runs of inputs as they were given."""

    @classmethod
    def of(
        cls,
        name: str,
        key_value: KeyValueStore,
        objects: ObjectStore,
        buckets: int,
        runner: TaskRunner,
        tally: BatchCounts | None,
        fitting: Fitting | None,
        first: IndexSettings,
        added: AddedOutputs | None,
    ) -> Dependencies:
        """Open those of a pipeline."""
        journal = Journal(key_value, name)
        sources = SourceRegistry(objects, KnownInputs(key_value, name))
        suspects = Suspects(key_value, name)
        outputs = Outputs(key_value, objects, buckets, tally, first, added)
        settling = Settling(journal, sources, suspects, outputs)
        tries = Tries(key_value, name)
        maintenance_tries = tries.another()
        runner, maintaining = runners(runner, tries, maintenance_tries)
        maintainer = Maintainer(key_value, objects, maintaining)
        merger = IndexMerger(Builder(key_value, objects, buckets, maintaining))
        return cls(
            journal,
            Clients(key_value, name),
            sources,
            suspects,
            outputs,
            settling,
            objects,
            buckets,
            runner,
            maintainer,
            merger,
            tries,
            maintenance_tries,
            Unread(key_value, name),
            fitting,
        )
