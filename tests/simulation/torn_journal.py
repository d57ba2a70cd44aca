"""A record of the journal is torn or lost at any moment next to replicas: this is reported, and nothing is lost
(J12)."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from tests.simulation.other_runs import StripedTasks
from tests.simulation.replicas import BUCKETS, PipelineScenario
from tests.simulation.scenarios import require
from tracelake._errors import DamageError
from tracelake.journal.store import Journal, check_transactions
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.shards.shard import Shard
from tracelake.testing import Actor, Process, Run


class TornJournalScenario(PipelineScenario):
    """Replicas, and a disk that once damages one of their journal's newest records."""

    name = "torn journal"

    def __init__(self, how: Literal["torn", "gone"] = "torn") -> None:
        super().__init__(replicas=2, segments=3)
        self._how = how

    def actors(self) -> list[Actor]:
        return [Actor("disk", self._damage), *super().actors()]

    def _damage(self, process: Process) -> None:
        """Damage a record of an uncommitted transaction."""
        for _ in range(40):
            entries = process.key_value.scan("journal/main", stop="f")
            if (
                entries
                and int(entries[-1].key[:16]) >= Outputs(process.key_value, process.objects, BUCKETS).upper()
            ):
                last = entries[-1]
                if self._how == "gone":
                    process.key_value.delete_if("journal/main", last.key, last.version)
                else:
                    process.key_value.set("journal/main", last.key, last.value[: len(last.value) // 2])
                process.notes["damaged"] = int(last.key[:16])
                return

    def _run(self, process: Process) -> None:
        pipeline = Pipeline("main", process.key_value, process.objects, BUCKETS, StripedTasks(process))
        inputs = [Input(INBOX, info.path, info.size_bytes) for info in process.objects.list("inbox/")]
        inputs = inputs[:: -1 if process.name == "replica-1" else 1]  # so a new record has another input
        try:
            pipeline.run([[item] for item in inputs])
        except DamageError:
            process.notes["told"] = True

    def check(self, run: Run) -> None:
        """Nothing is doubled or lost; the replica that meets damage reports it, or `verify` finds it."""
        damaged = run.notes.get("damaged")
        if damaged is None:
            super().check(run)
            return
        shard = Shard("spans", run.direct_key_value, run.direct_objects)
        upper = shard.state().upper
        parts = shard.snapshot(upper - 1).parts if upper else []
        rows = Counter(row for part in parts for row in run.objects.get(part.path).decode())
        require(set(rows.values()) <= {1}, f"table spans holds {dict(rows)}")
        left = {info.path.rpartition("/")[2] for info in run.objects.list("inbox/")}
        require(set(self.rows()) <= rows.keys() | left, f"{set(self.rows()) - rows.keys() - left} are lost")
        _, findings = check_transactions(Journal(run.direct_key_value, "main"), upper, ())
        is_whole = rows.keys() == set(self.rows()) and not left  # it was recorded again
        require(run.notes.get("told", False) or bool(findings) or is_whole, "nobody was told")
