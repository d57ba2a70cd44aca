"""Replicas with a journal that is concurrently trimmed to the last transaction: a late replica loses nothing and is
no damage.

One replica is late on purpose. It reads a segment that only it has for a transaction. It records that only once its
peers have continued and the journal has forgotten the transaction, if they do.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any, Literal, TypeAlias, cast

from tests.simulation.replicas import BUCKETS, PipelineScenario, SimulatedTasks
from tests.simulation.scenarios import require
from tests.simulation.setting_aside import SettingAsideScenario
from tracelake._errors import UsageError
from tracelake.journal.quarantine import QuarantineStore
from tracelake.journal.store import Journal, check_transactions, trim
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.outputs.builtin import SET_ASIDE
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.quarantine_actions import QuarantineActions
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.search.vectors import PLAIN
from tracelake.shards.shard import Shard
from tracelake.storage import Entry, Expected, KeyValueStore, Outcome
from tracelake.testing import Actor, Process, Run
from tracelake.versions.repository import Repository

Late: TypeAlias = Literal["records", "reads", "asides"]
ROUNDS = 4
LOOKS_MAX = 300
"""Checks by a late replica whether the journal has forgotten, before it continues."""


class LateKeyValue:
    """Store of a replica that waits before it records a step, reads a seal, or checks for quarantine."""

    def __init__(self, process: Process, late: Late) -> None:
        self._process = process
        self._late = late
        self._looks = LOOKS_MAX

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process.key_value, name)

    def get(self, partition: str, key: str) -> Entry | None:
        """See KeyValueStore."""
        if self._late == "asides" and partition == "asides/main":
            self._wait(int(key))
        if self._late == "reads" and partition == "journal/main" and key.endswith("-0000"):
            self._wait(int(key[:16]))
        return self._process.key_value.get(partition, key)

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """See KeyValueStore."""
        if self._late == "records" and partition == "journal/main" and key.endswith("-0000"):
            self._wait(int(key[:16]))
        return self._process.key_value.set_if(partition, key, value, expected)

    def _wait(self, t: int) -> None:
        journal = Journal(self._process.key_value, "main")
        while self._looks and journal.floor() <= t:
            self._looks -= 1


def trim_again_and_again(process: Process) -> None:
    """Keep only the journal's records of the last transaction."""
    trimmed = 0
    for _ in range(LOOKS_MAX // 2):
        upper = Outputs(process.key_value, process.objects, BUCKETS).upper()
        if upper > trimmed:
            trim(Journal(process.key_value, "main"), upper, retained=1)
            trimmed = upper


def verify_again_and_again(process: Process) -> None:
    """Verify that the journal lacks nothing above the floor."""
    for _ in range(ROUNDS):
        repository = Repository(process.key_value, process.objects)
        head = repository.head()
        if head is None:
            continue
        commits = [commit for _, commit in repository.log(head)]
        aside = {len(commits) - 1 - n for n, commit in enumerate(commits) if SET_ASIDE in commit.metadata}
        _, findings = check_transactions(Journal(process.key_value, "main"), len(commits), aside)
        require(not findings, f"verify finds {findings}")


def check_records(run: Run) -> None:
    """One more collection leaves the records of one transaction."""
    upper = Outputs(run.direct_key_value, run.direct_objects, BUCKETS).upper()
    trim(Journal(run.direct_key_value, "main"), upper, retained=1)
    left = [entry.key for entry in run.direct_key_value.scan("journal/main", stop="f")]
    require(all(int(key[:16]) >= upper - 1 for key in left), f"the journal of {upper} transactions is {left}")
    asides = [entry.key for entry in run.direct_key_value.scan("asides/main")]
    require(all(int(key) >= upper - 1 for key in asides), f"of {upper} transactions {asides} are set aside")


class TrimmingScenario(PipelineScenario):
    """Replicas, a trimmer and a verifier."""

    name = "trimming"
    steps_max = 8_000

    def __init__(self, late: Late = "records", segments: int = 3) -> None:
        super().__init__(2, segments)
        self._late = late

    def actors(self) -> list[Actor]:
        return [
            *super().actors(),
            Actor("trimmer", trim_again_and_again),
            Actor("verifier", verify_again_and_again),
        ]

    def _run(self, process: Process) -> None:
        inputs = [Input(INBOX, info.path, info.size_bytes) for info in process.objects.list("inbox/")]
        last = [item for item in inputs if item.path == f"inbox/{self._segments - 1}"]
        is_late = process.name.endswith("1")
        runs = [[item] for item in (inputs[::-1] if is_late else inputs) if is_late or item not in last]
        key_value = cast("KeyValueStore", LateKeyValue(process, self._late)) if is_late else process.key_value
        Pipeline("main", key_value, process.objects, BUCKETS, SimulatedTasks(process)).run(runs)

    def check(self, run: Run) -> None:
        """Every input is in once, and one more collection leaves the records of one transaction."""
        super().check(run)
        check_records(run)


class QuarantineTrimmingScenario(SettingAsideScenario):
    """The same with a poison segment that a user offers again."""

    name = "trimming aside"

    def __init__(self, stages: tuple[str | None, ...] = ("merge", "merge"), segments: int = 3) -> None:
        super().__init__(stages, segments)

    def actors(self) -> list[Actor]:
        return [
            *super().actors(),
            Actor("trimmer", trim_again_and_again),
            Actor("verifier", verify_again_and_again),
            Actor("user", self._decide),
        ]

    def key_value(self, process: Process) -> KeyValueStore:
        """Let one replica check late whether a transaction was quarantined."""
        is_late = process.name.endswith("1")
        return cast("KeyValueStore", LateKeyValue(process, "asides")) if is_late else process.key_value

    def _decide(self, process: Process) -> None:
        for t in (0, 1, 2):
            with contextlib.suppress(UsageError):
                QuarantineActions("main", process.key_value, process.objects, BUCKETS, PLAIN).decide(
                    t, "retry"
                )

    def check(self, run: Run) -> None:
        """Each good segment is in the tables once; the poison one is too, or it is kept and named."""
        check_records(run)
        suspects = QuarantineStore(run.direct_key_value, "main").all()
        kept = {suspect.path for suspect in suspects}
        inbox = {info.path for info in run.objects.list("inbox/")}
        require(inbox == kept, f"the inbox holds {inbox}, the records name {kept}")
        upper = Outputs(run.direct_key_value, run.direct_objects, BUCKETS).upper()
        for table in ("spans", "traces"):
            shard = Shard(table, run.direct_key_value, run.direct_objects)
            parts = shard.snapshot(upper - 1).parts if upper else []
            rows = Counter(row for part in parts for row in run.objects.get(part.path).decode())
            good = [str(segment) for segment in range(self._segments) if f"inbox/{segment}" not in kept]
            require(rows == dict.fromkeys(good, 1), f"{table} holds {dict(rows)}, the records name {kept}")
