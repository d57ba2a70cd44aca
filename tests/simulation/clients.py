"""Explicit transactions: a client begins, lets input arrive, and commits or aborts, next to replicas; all may die.

The client is an actor with the real records. After a kill it begins again as another client, which waits until a
replica has ended the dead one's transaction.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Final

from tests.simulation.replicas import BUCKETS, PipelineScenario, SimulatedTasks
from tests.simulation.scenarios import require
from tracelake._errors import UsageError
from tracelake.journal.explicit_transactions import (
    ClientTransaction,
    ExplicitTransactions,
    WhenGone,
    begin_transaction,
    on_end,
    on_keepalive,
)
from tracelake.journal.model import inputs_of
from tracelake.journal.protocol import EACH_STEP, ClientRequest, CommitPolicy
from tracelake.journal.quarantine import QuarantineStore
from tracelake.journal.store import Journal
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.outputs.builtin import SET_ASIDE
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.shards.shard import Shard
from tracelake.testing import Actor, Process, Run
from tracelake.versions.repository import Repository

TIMEOUT_S: Final = 100.0
LOOK_S: Final = 10
ROUNDS_MAX: Final = 150
DONE: Final = "done"
SILENT: Final = (1, 20)
"""Longer than its timeout."""
ROWS: Final = CommitPolicy(max_rows=3, max_delay_s=60.0)


class ClientsScenario(PipelineScenario):
    """Replicas of a continuous pipeline, with different modes, and successive clients."""

    name = "clients"
    steps_max = 12_000

    def __init__(
        self,
        wishes: tuple[ClientRequest, ...] = ("commit", "abort"),
        when_gone: WhenGone = "seal",
        dwells: tuple[int, ...] = (0, 1),
        modes: tuple[CommitPolicy, ...] = (EACH_STEP, ROWS),
    ) -> None:
        """`dwells`: the replica polls that the client waits for after each of its segments."""
        super().__init__(replicas=len(modes), segments=1)
        self._modes = modes
        self._wishes = wishes
        self._when_gone: WhenGone = when_gone
        self._dwells = dwells

    def actors(self) -> list[Actor]:
        return [Actor("client", self._act), Actor("server", self._serve), *super().actors()]

    def _serve(self, process: Process) -> None:
        """Let segments arrive that are unrelated to the client."""
        for name in "123":
            # otherwise it existed before this server was killed
            if process.objects.head(f"was/{name}") is None:
                process.objects.put(f"was/{name}", b"")
                process.notes.setdefault("put", []).append(name)
                process.objects.put(f"inbox/{name}", name.encode())
            if name == "3":  # no replica ends before that: a killed or disconnected server is late
                process.notes["served"] = True
            process.sleep(LOOK_S)

    def _run(self, process: Process) -> None:
        mode = self._modes[int(process.name[-1])]
        tasks = SimulatedTasks(process)
        pipeline = Pipeline("main", process.key_value, process.objects, BUCKETS, tasks, mode=mode)
        for _ in range(ROUNDS_MAX):
            is_last = process.objects.head(DONE) is not None and process.notes.get("served", False)
            pipeline.snapshot_client()
            inputs = [Input(INBOX, info.path, info.size_bytes) for info in process.objects.list("inbox/")]
            result = pipeline.run([[item] for item in inputs], continuous=True)
            stands = ExplicitTransactions(process.key_value, "main").read()
            if (
                is_last
                and not inputs
                and result.open_transaction is None
                and (stands is None or stands.is_over)
            ):
                return
            process.sleep(LOOK_S)
        process.notes["unfair"] = True  # the other actors could not run; the scheduler may do that

    def _act(self, process: Process) -> None:
        """Begin, let segments arrive, and end as requested, one client after the other."""
        for number, wish in enumerate(self._wishes):
            client = f"{process.attempt}.{number}"
            if process.notes.get(f"wish {number}"):
                continue  # it ended before it was killed
            if not self._begin(process, client):
                break
            process.record(("begun", client, ""))
            for row in range(len(self._dwells)):
                # One character for each segment, whichever client puts it.
                name = chr(ord("a") + process.attempt * 8 + number * len(self._dwells) + row)
                process.notes.setdefault("put", []).append(name)
                process.objects.put(f"inbox/{name}", name.encode())
                process.record(("arrived", client, name))
                process.sleep(LOOK_S * self._dwells[row])
            self._clients(process, client, wish)
            process.notes[f"wish {number}"] = True
        process.objects.put(DONE, b"")

    def _begin(self, process: Process, client: str) -> bool:
        """Begin once an earlier transaction is over; return False if no replica can run for long."""
        clients = ExplicitTransactions(process.key_value, "main")
        wanted = ClientTransaction(client, self._when_gone, TIMEOUT_S, process.now_s())
        for _ in range(ROUNDS_MAX):
            with contextlib.suppress(UsageError):
                clients.change(lambda standing: begin_transaction(standing, wanted))
                return True
            process.sleep(LOOK_S)
        process.notes["unfair"] = True
        return False

    def _clients(self, process: Process, client: str, wish: ClientRequest) -> None:
        """Send a heartbeat, and end the transaction."""
        clients = ExplicitTransactions(process.key_value, "main")
        now_s = process.now_s()
        clients.change(lambda standing: on_keepalive(standing, client, now_s))
        try:
            stands = clients.change(lambda standing: on_end(standing, client, wish))
        except UsageError as error:  # a replica has ended it, because it was slow
            process.record(("refused", client, str(error)))
        else:
            assert stands is not None
            process.record(("gone" if stands.is_gone else wish, client, ""))

    def check(self, run: Run) -> None:
        """Check that each segment is in once, and that a client's input is one transaction or was not published
        with its name."""
        if run.notes.get("unfair"):
            return
        history = [what for name, what in run.history if name == "client" and isinstance(what, tuple)]
        arrived = {name for kind, _, name in history if kind == "arrived"}
        put = set(run.notes.get("put", [])) | {"0"}
        repository = Repository(run.direct_key_value, run.direct_objects)
        head = repository.head()
        require(head is not None, "nothing was committed")
        assert head is not None
        commits = [commit for _, commit in repository.log(head)][::-1]
        rows = Counter(
            row
            for part in Shard("spans", run.direct_key_value, run.direct_objects)
            .snapshot(len(commits) - 1)
            .parts
            for row in run.objects.get(part.path).decode()
        )
        require(set(rows.values()) == {1}, f"table spans holds {dict(rows)}")
        require(arrived <= set(rows) <= put, f"table spans holds {set(rows)} of {arrived}")
        require(not list(run.objects.list("inbox/")), "a segment is left")
        journal = Journal(run.direct_key_value, "main")
        taken: dict[str, int] = {}
        of_client: dict[str, list[int]] = {}
        asides: set[str] = set()
        for t, commit in enumerate(commits):
            recorded = journal.read(t)
            require(recorded.seal is not None, f"transaction {t} is committed, and not sealed")
            assert recorded.step is not None
            owners = {step.client for step in recorded.steps}
            require(len(owners) == 1, f"transaction {t} has steps of {owners}")
            owner, is_aside = owners.pop(), SET_ASIDE in commit.metadata
            if owner and is_aside:
                asides.add(owner)
            elif owner:
                of_client.setdefault(owner, []).append(t)
            if not is_aside:
                taken |= {
                    each.path.removeprefix("inbox/"): t for each in inputs_of(recorded.step.sources[INBOX])
                }
        for owner, transactions in of_client.items():
            require(len(transactions) == 1, f"what client {owner} began is transactions {transactions}")
        ends = {client: kind for kind, client, _ in history if kind in ("commit", "abort")}
        for client, kind in ends.items():
            own = {name for what, who, name in history if what == "arrived" and who == client}
            where = {taken[name] for name in own}
            if kind == "commit":
                # A transaction quarantined after deaths is taken in smaller ones, without the client's name.
                require(
                    where == set(of_client.get(client, [])) or client in asides,
                    f"{client} committed {own}, which are in {where}",
                )
            else:
                require(
                    client not in of_client, f"{client} aborted, and is transaction {of_client.get(client)}"
                )


class PlainIngestScenario(ClientsScenario):
    """A caller ingests one file outside any client's transaction; no abort removes it."""

    name = "plain ingest beside clients"
    FILE: Final = "plain/Z"

    def __init__(self) -> None:
        super().__init__(("abort", "commit"))

    def actors(self) -> list[Actor]:
        return [*super().actors(), Actor("caller", self._ingest)]

    def _ingest(self, process: Process) -> None:
        """Ingest the file; retry later while another client's transaction is open."""
        if process.objects.head("was/Z") is None:
            process.objects.put(self.FILE, b"Z")
            process.objects.put("was/Z", b"")
        process.notes.setdefault("put", []).append("Z")
        tasks = SimulatedTasks(process)
        pipeline = Pipeline("main", process.key_value, process.objects, BUCKETS, tasks)
        for _ in range(ROUNDS_MAX):
            with contextlib.suppress(UsageError):
                pipeline.snapshot_client("")
                pipeline.run([[Input(INBOX, self.FILE, 1)]])
                process.notes["ingested"] = True
                return
            process.sleep(LOOK_S)
        process.notes["unfair"] = True

    def check(self, run: Run) -> None:
        """The file is in once its ingest has returned, whatever the clients' transactions did."""
        super().check(run)
        if run.notes.get("unfair") or not run.notes.get("ingested"):
            return
        if any(suspect.path == self.FILE for suspect in QuarantineStore(run.direct_key_value, "main").all()):
            return  # too many runs died of it
        head = Repository(run.direct_key_value, run.direct_objects).head()
        upper = Repository(run.direct_key_value, run.direct_objects).transaction_of(head or "") + 1
        parts = Shard("spans", run.direct_key_value, run.direct_objects).snapshot(upper - 1).parts
        require(
            any(b"Z" in run.objects.get(part.path) for part in parts),
            "the ingested file is not in table spans",
        )
