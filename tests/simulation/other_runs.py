"""A dead run's transaction in the hands of another run: in other tasks (J10), or of another release (J15)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from tests.simulation.replicas import BUCKETS, PipelineScenario, SimulatedTasks
from tests.simulation.scenarios import require
from tracelake._errors import SourceChangedError, UsageError
from tracelake.journal.model import Step
from tracelake.journal.protocol import Appended, StateRead
from tracelake.journal.store import Journal
from tracelake.otlp.decode import InputDigest
from tracelake.otlp.prices import PriceTable
from tracelake.pipeline import driver, quarantine_actions, replay, staging
from tracelake.pipeline.decode_task import InputShare, ReadTask, ShareReceipt, StagedSlice
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.search.vectors import PLAIN
from tracelake.shards.shard import Shard
from tracelake.testing import Actor, Process, Run
from tracelake.testing.simulation import StandIn

ROUNDS_OF_OLD: Final = 2
TRIES_MAX: Final = 200
LONG: Final = ("01234", "56789")


class StripedTasks(SimulatedTasks):
    """Tasks that read one stripe of an input each, and stage each row alone."""

    def _write(self, data: bytes, of_share: ShareReceipt, staging: str) -> list[StagedSlice]:
        rows = data.decode()[of_share.share.stripe :: of_share.share.stripes]
        of_share.records = of_share.spans = len(rows)
        of_share.checksum = sum(map(ord, rows))
        return self._each_alone(rows, staging)


class ReshardedScenario(PipelineScenario):
    """Replicas with another number of workers, 2 or 5, at each start (J10)."""

    name = "resharded"

    def __init__(self) -> None:
        super().__init__(replicas=2, segments=len(LONG))

    def prepare(self, run: Run) -> None:
        """Put segments of several rows."""
        for number, rows in enumerate(LONG):
            run.objects.put(f"inbox/{number}", rows.encode())

    def rows(self) -> str:
        return "".join(LONG)

    def stand_ins(self, run: Run) -> Sequence[StandIn]:
        """Cut each input into as many stripes as there are workers."""

        def cut(
            inputs: Sequence[Input], url: str, buckets: int, below: str, _prices: PriceTable
        ) -> list[ReadTask]:
            process = run.current()
            workers = 2 if (process.attempt + int(process.name[-1])) % 2 else 5
            return [
                ReadTask(
                    url, (InputShare(each.source, each.path, each.size_bytes, n, workers),), buckets, below
                )
                for each in inputs
                for n in range(workers)
            ]

        return [(staging, "read_tasks", cut), *super().stand_ins(run)]

    def _run(self, process: Process) -> None:
        inputs = [Input(INBOX, info.path, info.size_bytes) for info in process.objects.list("inbox/")]
        pipeline = Pipeline("main", process.key_value, process.objects, BUCKETS, StripedTasks(process))
        pipeline.run([[item] for item in inputs])


def is_old(process: Process) -> bool:
    """Return whether a process has the old release, which the user can still run."""
    return process.name != "replica-1"


class ReleaseTasks(SimulatedTasks):
    """Tasks of two releases: the new one makes other rows of the same input."""

    def _bytes(self, share: InputShare) -> tuple[bytes, InputDigest]:
        data, whole = super()._bytes(share)
        return data if is_old(self._process) else data.upper(), whole


class ReleasesScenario(PipelineScenario):
    """A replica of the old release, which stops after a while, one of the new, and a user who helps (J15)."""

    name = "releases"
    steps_max = 6_000

    def __init__(self) -> None:
        super().__init__(replicas=2, segments=3)

    def actors(self) -> list[Actor]:
        return [Actor("user", self._help), *super().actors()]

    def rows(self) -> str:
        return "abc"

    def prepare(self, run: Run) -> None:
        """Put segments whose rows show their release."""
        for row in self.rows():
            run.objects.put(f"inbox/{row}", row.encode())

    def stand_ins(self, run: Run) -> Sequence[StandIn]:
        """Give each process the transform of its release."""

        def transform() -> str:
            return "old" if is_old(run.current()) else "new"

        def step(t: int, sources: Any, _transform: str, *others: Any) -> Step:
            return Step(t, sources, transform(), *others)

        def started(**told: Any) -> StateRead:
            return StateRead(**{**told, "transform": transform()})

        def appended(stands: Step, ours: bool, _transform: str = "", **_told: Any) -> Appended:
            return Appended(stands, ours, transform())

        return [
            (driver, "Step", step),
            (driver, "Appended", appended),
            (replay, "StateRead", started),
            *super().stand_ins(run),
        ]

    def _run(self, process: Process) -> None:
        pipeline = self._pipeline(process)
        for number in range(TRIES_MAX):
            inputs = [Input(INBOX, info.path, info.size_bytes) for info in process.objects.list("inbox/")]
            try:
                pipeline.run([[item] for item in inputs])
            except SourceChangedError as error:
                require("was started by another release" in str(error), f"{error}")
                process.notes["refused"] = True
            else:
                if is_old(process) and number >= ROUNDS_OF_OLD:
                    return
                if not is_old(process) and not inputs and not pipeline.unfinished():
                    process.notes["over"] = True
                    return
            process.sleep(1)
        require(is_old(process), "what waits is never taken")

    def _help(self, process: Process) -> None:
        """If the new release refuses, release inputs to be taken again; finish inputs that have rows with the old
        one."""
        decides = quarantine_actions.QuarantineActions(
            "main", process.key_value, process.objects, BUCKETS, PLAIN
        )
        decides._pipeline = pipeline = self._pipeline(process)
        while not process.notes.get("over"):
            process.sleep(5)
            if process.notes.pop("refused", False):
                try:
                    decides.decide(pipeline.upper(), "retry")
                except UsageError:  # it has rows, or the replica has continued since
                    with suppress(SourceChangedError):  # since begun by the new release
                        pipeline.run([])

    def _pipeline(self, process: Process) -> Pipeline:
        return Pipeline("main", process.key_value, process.objects, BUCKETS, ReleaseTasks(process))

    def check(self, run: Run) -> None:
        """Each row is in once, and all rows of a transaction are of its step's release."""
        journal = Journal(run.direct_key_value, "main")
        shard = Shard("spans", run.direct_key_value, run.direct_objects)
        rows = Counter[str]()
        for t in range(shard.state().upper):
            batch, steps = shard.batch_at(t), journal.read(t).steps
            of_batch = "".join(run.objects.get(part.path).decode() for part in batch.parts) if batch else ""
            releases = {"old" if row.islower() else "new" for row in of_batch}
            require(
                not of_batch or releases == {each.transform for each in steps},
                f"{t} is of {releases}: {steps}",
            )
            rows.update(of_batch.lower())
        require(rows == dict.fromkeys(self.rows(), 1), f"table spans holds {dict(rows)}")
