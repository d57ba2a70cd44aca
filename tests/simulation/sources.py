"""Sources that are added, paused, resumed and removed while replicas take their input (J13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from tests.simulation.replicas import BUCKETS, PipelineScenario, SimulatedTasks
from tests.simulation.scenarios import require
from tracelake._errors import StorageError, UsageError
from tracelake.journal.model import inputs_of
from tracelake.journal.store import Journal
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.registrations import AddedSources
from tracelake.pipeline.sources.base import Input, Lag
from tracelake.pipeline.sources.poller import SourcePoller, at_once
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.replicas.replica import BacklogEntry
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.testing import Actor, Process, Run

ROUNDS_MAX: Final = 300
AWAY: Final = "away"
_DONE: Final = "done"


class Drops:
    """Watches a lake folder whose objects are taken like segments; the unavailable source never answers."""

    source = INBOX

    def __init__(self, objects: ObjectStore, folder: str) -> None:
        self._objects, self._folder = objects, folder

    def look(self, suspects: Collection[str], *, continuous: bool) -> list[BacklogEntry]:
        """Return all inputs."""
        del suspects, continuous
        if self._folder == AWAY:
            raise StorageError("no answer")
        listed = self._objects.list(f"inbox/{self._folder}/")
        return [BacklogEntry(info.path, info.size_bytes, info.modified_s) for info in listed]

    def took(self, paths: Iterable[str]) -> None:
        """Note nothing, because taken inputs are gone."""

    def lag(self) -> Lag | None:
        """Return None: the lag is unknown."""


def recorded(key_value: KeyValueStore, upper: int) -> set[str]:
    """Return all paths in the journal."""
    journal = Journal(key_value, "main")
    steps = (step for t in range(upper) for step in journal.read(t).steps)
    return {each.path for step in steps for ranges in step.sources.values() for each in inputs_of(ranges)}


class SourcesScenario(PipelineScenario):
    """Replicas and a user. The user adds two sources and an unavailable one, pauses and resumes the first, and
    removes the second.

    Each step of the user happens at least once, under any kill.
    """

    name = "sources"
    steps_max = 9_000

    def __init__(self, replicas: int = 2) -> None:
        super().__init__(replicas, 1)

    def actors(self) -> list[Actor]:
        return [Actor("user", self._use), *super().actors()]

    def prepare(self, run: Run) -> None:
        """Put a segment into the source that every lake has."""
        run.objects.put("inbox/own/0", b"0")

    def _run(self, process: Process) -> None:
        looks = SourcePoller(
            [Drops(process.objects, "own")],
            (),
            AddedSources(process.key_value),
            lambda url: Drops(process.objects, url.rpartition("/")[2]),
            at_once,
        )
        pipeline = Pipeline("main", process.key_value, process.objects, BUCKETS, SimulatedTasks(process))
        for _ in range(ROUNDS_MAX):
            is_over = process.key_value.get("user", _DONE) is not None
            seen = looks.look((), continuous=False)
            if seen.waiting or pipeline.unfinished():
                pipeline.run([[Input(source, item.path, item.size_bytes)] for source, item in seen.waiting])
            elif is_over:
                return
            process.sleep(1)
        raise AssertionError("what waits is never taken")

    def _use(self, process: Process) -> None:
        added = AddedSources(process.key_value)
        steps: list[Callable[[], object]] = [
            lambda: added.add("a", "memory://drops/a", lambda _: None),
            lambda: added.add("away", f"memory://drops/{AWAY}", lambda _: None),
            lambda: added.add("b", "memory://drops/b", lambda _: None),
            lambda: self._put(process, "a", 1),
            lambda: self._put(process, "b", 2),
            lambda: added.pause("a", on=True),
            lambda: self._put(process, "a", 3),
            lambda: self._require_left(process),
            lambda: added.pause("a", on=False),
            lambda: added.remove("b"),
            lambda: self._put(process, "b", 4),
        ]
        for number, step in enumerate(steps):
            if process.key_value.get("user", str(number)) is None:
                with suppress(UsageError):  # done before this process was killed
                    step()
                process.key_value.set("user", str(number), b"")
        process.key_value.set("user", _DONE, b"")

    def _put(self, process: Process, folder: str, number: int) -> None:
        """Put an object that never existed before."""
        row = chr(ord("A") + 5 * process.attempt + number)
        process.objects.put(f"inbox/{folder}/{row}", row.encode())
        process.notes.setdefault("put", []).append((folder, number, row))

    def _require_left(self, process: Process) -> None:
        """Check that an input from after the pause is in no step a while later."""
        process.sleep(3)
        upper = Shard("spans", process.key_value, process.objects).state().upper + 1
        taken = recorded(process.key_value, upper)
        for folder, number, row in process.notes["put"]:
            is_later = (folder, number) == ("a", 3)
            require(not is_later or f"inbox/a/{row}" not in taken, "what came after the pause was taken")

    def check(self, run: Run) -> None:
        """Each input is once in the tables or in its place; all watched inputs are in, and nothing else."""
        shard = Shard("spans", run.direct_key_value, run.direct_objects)
        upper = shard.state().upper
        parts = shard.snapshot(upper - 1).parts if upper else []
        rows = Counter(row for part in parts for row in run.objects.get(part.path).decode())
        left = {info.path.rpartition("/")[2]: info.path for info in run.objects.list("inbox/")}
        require(max(rows.values(), default=0) == 1, f"table spans holds {dict(rows)}")
        require(not left.keys() & rows.keys(), f"{left} were taken, and are still there")
        require("0" in rows, "what every lake has was not taken")
        stray = [path for path in left.values() if not path.startswith("inbox/b/")]
        require(not stray, f"{stray} wait, and nobody takes them")
        for folder, number, row in run.notes["put"]:
            require(row in rows or row in left, f"{row} is nowhere")
            require((folder, number) != ("b", 4) or row not in rows, "what came after the removal was taken")
