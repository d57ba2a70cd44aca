"""A pipeline between two Kafka topics and an inbox, with all users of its lake; all may die at any step.

Replicas take an inbox and a topic, whose writer commits and aborts, and write each transaction to another topic
(J6, J7, J8, J14). Partitions appear, retention removes unread messages (J11), and a user discards lost ones. The
broker writes its markers after it answers. Only the broker is a model, and the rows are characters.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from tests.simulation.kafka_library import Admin, Producer, SimulatedLibrary, model_of, step
from tests.simulation.kafka_model import KafkaModel, Log
from tests.simulation.replicas import BUCKETS, PipelineScenario, SimulatedTasks
from tests.simulation.scenarios import require
from tests.simulation.sources import Drops
from tracelake._errors import UsageError
from tracelake.journal.quarantine import QuarantineStore
from tracelake.journal.store import IngestedFiles
from tracelake.otlp.decode import InputDigest
from tracelake.otlp.framing import Payload, Reading
from tracelake.pipeline import kafka_client, quarantine_actions
from tracelake.pipeline.decode_task import InputShare
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.kafka_client import is_range, name_of
from tracelake.pipeline.merge_task import ShapeReceipt, TransactionMergeTask
from tracelake.pipeline.outputs.configured import TRANSACTION_HEADER, AddedOutputs, OutputRecord, _sink
from tracelake.pipeline.outputs.external import KeyedOutput, OversizedRowStore
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.registrations import AddedSources
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.kafka import KAFKA, PARTITION, KafkaWatch
from tracelake.pipeline.sources.poller import SourcePoller, at_once
from tracelake.pipeline.sources.registry import fetch
from tracelake.search.vectors import PLAIN
from tracelake.shards.model import Batch
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.testing import Actor, Process, Run
from tracelake.testing.simulation import StandIn

SERVERS: Final = "broker:1"
IN: Final = "in"
OUT: Final = "out"
OUTPUT: Final = "stream"
MAX_BYTES: Final = 1_000
"""Maximum size of a message of the output topic."""
REPEAT: Final = "r"
"""A row that already exists in the tables."""
LARGE: Final = "L"
"""A row that the topic refuses as too large."""
SENT: Final = ("commit", "abort", "commit", "partition", "commit", "abort")
PUT: Final = ("0", REPEAT, "1", LARGE)
PAUSE_S: Final = 0.05
"""About the time of fifty calls, without delays."""
DONE: Final = "done"


class TopicTasks(SimulatedTasks):
    """Tasks that also read ranges of topics; if all rows are repeats, they write no part."""

    def _bytes(self, share: InputShare) -> tuple[bytes, InputDigest]:
        if share.source != KAFKA:
            return super()._bytes(share)
        with tempfile.TemporaryDirectory(prefix="tracelake-simulated-") as folder:
            reading = Reading(
                fetch(self._process.objects, share.source, share.path, share.size_bytes, Path(folder))
            )
            rows = b"".join(each.data for each in reading if isinstance(each, Payload))
        assert reading.whole is not None
        return rows, reading.whole

    def _shape(self, task: TransactionMergeTask) -> ShapeReceipt:
        repeats = [piece for piece in task.pieces if piece.path.endswith(f"-{REPEAT}")]
        if len(repeats) < len(task.pieces):
            new = [piece for piece in task.pieces if piece not in repeats]
            return super()._shape(replace(task, pieces=new))
        self._stage(task, self._process.new_uuid().hex, f"{task.transaction}: ".encode())
        receipt = ShapeReceipt()
        receipt.of("spans").count(new=0, replaced=0, repeated=len(repeats))
        return receipt


class Characters:
    """Contents of an output: a transaction's rows as characters; see `Content`."""

    def __init__(self, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self.shard = Shard("spans", key_value, objects)
        self._objects = objects

    def rows(self, batch: Batch) -> int:
        """Return their number."""
        return sum(part.rows for part in batch.parts)

    def tables(self, batch: Batch) -> Iterator[pa.Table]:
        """Yield them by parts."""
        for part in batch.parts:
            yield pa.table({"row": list(self._objects.get(part.path).decode())})

    def encode(self, rows: pa.Table) -> bytes:
        """Return the rows as text; a large row has a long suffix that no codec compresses."""
        text = "".join(map(str, rows["row"].to_pylist()))
        return text.encode() + (hashlib.shake_128(b"").digest(MAX_BYTES) if LARGE in text else b"")

    def name(self, row: pa.Table) -> str:
        """Return the name of a row."""
        return f"row {row['row'][0]}"


class TopicOutputs(AddedOutputs):
    """Outputs of characters."""

    def _to_output(self, record: OutputRecord) -> KeyedOutput:
        assert record.since is not None
        content = Characters(self._key_value, self._objects)
        return KeyedOutput(record.name, record.id, record.since, _sink(record), content, self._key_value)


class KafkaScenario(PipelineScenario):
    """Replicas, the writer of the topic, its broker, and a user."""

    name = "kafka"
    steps_max = 20_000

    def __init__(self, replicas: int = 2, sent: Sequence[str] = SENT, put: Sequence[str] = PUT) -> None:
        """`sent`: the transactions of the topic; `put`: the inputs of the inbox."""
        super().__init__(replicas, len(put))
        self._sent, self._put = sent, put

    def actors(self) -> list[Actor]:
        return [
            Actor("broker", self._mark),
            Actor("sender", self._send),
            Actor("user", self._use),
            *super().actors(),
        ]

    def stand_ins(self, run: Run) -> Sequence[StandIn]:
        """Give every process a separate library, with clients that are not cached."""

        def library() -> SimulatedLibrary:
            return SimulatedLibrary(run.current())

        return [
            (kafka_client, "library", library),
            (kafka_client, "_admin", lambda *_: Admin(run.current())),
            *super().stand_ins(run),
        ]

    def prepare(self, run: Run) -> None:
        """Make the topics, and let segments arrive."""
        run.notes["kafka"] = model = KafkaModel()
        model.make_topic(IN)
        model.make_topic(OUT, 2, MAX_BYTES)
        for number, rows in enumerate(self._put):
            run.objects.put(f"inbox/own/{number}", rows.encode())

    # The topic's writer, and its broker

    def _mark(self, process: Process) -> None:
        """Write the markers of ended transactions, some time after the reply."""
        model, idle = model_of(process), 0
        while not self._is_over(process):
            idle = 0 if model.markers() else idle + 1
            for writer, where in model.markers():
                process.sleep(PAUSE_S)
                process.call(step(f"marker for {where}", _marking(model, writer, where)))
            process.sleep(min(2.0, PAUSE_S * 1.05**idle))

    def _is_over(self, process: Process) -> bool:
        over: set[str] = process.notes.setdefault("over", set())
        return len(over) == self._replicas

    def _send(self, process: Process) -> None:
        """Send messages in transactions, and add a partition. Unacknowledged messages are sent again as new ones."""
        done: list[int] = process.notes.setdefault("sent", [])
        producer = Producer(process, "sender")
        with kafka_client.as_storage_error("the sender"):  # then it begins again
            producer.init_transactions(60.0)
            for number, what in enumerate(self._sent):
                if number in done:
                    continue
                if what == "partition":
                    model_of(process).topics[IN].logs.append(Log())
                else:
                    producer.begin_transaction()
                    for _ in range(3):
                        producer.produce(IN, self._new_row(process))
                        process.sleep(PAUSE_S)
                    end = producer.commit_transaction if what == "commit" else producer.abort_transaction
                    end(1.0)
                done.append(number)
        process.objects.put(DONE, b"")

    @staticmethod
    def _new_row(process: Process) -> bytes:
        """Return a row that never existed before."""
        number = process.notes["rows"] = process.notes.get("rows", 0) + 1
        return chr(0x100 + number).encode()

    # The user, and retention

    def _use(self, process: Process) -> None:
        """Add the output; discard lost messages while retention continues."""
        upper = Outputs(process.key_value, process.objects, BUCKETS).upper
        with contextlib.suppress(UsageError):  # it exists from before this process was killed
            TopicOutputs(process.key_value, process.objects, BUCKETS).add(
                OUTPUT, f"kafka://{SERVERS}/{OUT}", upper
            )
        decides = quarantine_actions.QuarantineActions(
            "main", process.key_value, process.objects, BUCKETS, PLAIN
        )
        decides._pipeline = self._pipeline(process)
        for _ in range(4):
            process.sleep(10 * PAUSE_S)
            self._remove_some(process)
            for suspect in QuarantineStore(process.key_value, "main").all():
                if suspect.state != "set aside":
                    continue  # it is taken again
                with contextlib.suppress(UsageError):
                    decides.decide(suspect.transaction, "discard")
        process.notes["used"] = True

    def _remove_some(self, process: Process) -> None:
        """Remove the first offsets of the partitions that a pipeline has polled."""
        model = model_of(process)
        for entry in process.key_value.scan(f"{PARTITION}/main"):
            where = (IN, int(entry.key.rpartition("/")[2]))
            low = model.log(where).low + 2
            process.call(step(f"remove below {low} of {where}", _removing(model, where, low)))

    # The pipeline

    def _run(self, process: Process) -> None:
        known = IngestedFiles(process.key_value, "main")
        looks = SourcePoller(
            [Drops(process.objects, "own")],
            [f"kafka://{SERVERS}/{IN}"],
            AddedSources(process.key_value),
            lambda url: KafkaWatch(process.objects, known, url),
            at_once,
        )
        pipeline = self._pipeline(process)
        idle = 0
        while True:
            is_last = self._is_all_there(process)
            pipeline.snapshot_client()
            held = {suspect.path for suspect in pipeline.suspects()}
            seen = looks.look(held | {path for _, path in pipeline.open_inputs()}, continuous=True)
            result = pipeline.run(
                [[Input(source, item.path, item.size_bytes)] for source, item in seen.waiting],
                continuous=True,
            )
            is_done = is_last and not seen.waiting and not seen.unseen and result.open_transaction is None
            if is_done and not pipeline.unfinished():
                process.notes.setdefault("over", set()).add(process.name)
                return
            idle = 0 if seen.waiting else idle + 1  # if others are slow, few polls suffice
            process.sleep(min(2.0, PAUSE_S * 1.5**idle))

    def _pipeline(self, process: Process) -> Pipeline:
        outputs = TopicOutputs(process.key_value, process.objects, BUCKETS)
        return Pipeline(
            "main", process.key_value, process.objects, BUCKETS, TopicTasks(process), added=outputs
        )

    def _is_all_there(self, process: Process) -> bool:
        """Return whether all expected input has arrived with its markers."""
        is_sent = process.objects.head(DONE) is not None and process.notes.get("used", False)
        return is_sent and not model_of(process).markers()

    # Invariants

    def check(self, run: Run) -> None:
        """Each committed message is in the tables once, or lost by name; the output has each batch once."""
        by_transaction = rows_by_transaction(run)
        rows = Counter("".join(by_transaction.values()))
        require(set(rows.values()) <= {1}, f"table spans holds {dict(rows)}")
        expected = set(self._put) - {REPEAT}
        model: KafkaModel = run.notes["kafka"]
        suspects = QuarantineStore(run.direct_key_value, "main").all()
        for number, log in enumerate(model.topics[IN].logs):
            held = [
                (start, stop, suspect.state)
                for suspect in suspects
                if is_range(suspect.path)
                for name, start, stop in [name_of(suspect.path)]
                if name.partition == number
            ]
            for offset, record in enumerate(log.records):
                if not log.is_seen(offset):
                    continue
                row = (record.value or b"").decode()
                of = [state for start, stop, state in held if start <= offset < stop]
                is_lost = row not in rows
                require(not is_lost or bool(of), f"{row}, offset {offset} of {number}, is nowhere")
                require(not is_lost or offset < log.low or "set aside" in of, f"{row} is held, and there")
                expected |= set() if is_lost else {row}
        require(set(rows) == expected, f"table spans holds {sorted(rows)}, and not {sorted(expected)}")
        left = [info.path for info in run.objects.list("inbox/")]
        require(not left, f"{left} are still in the inbox")
        self._check_output(run, by_transaction)

    def _check_output(self, run: Run, by_transaction: dict[int, str]) -> None:
        (record,) = AddedOutputs(run.direct_key_value, run.direct_objects, BUCKETS).records().readable
        assert record.since is not None
        wanted = {t: sorted(rows) for t, rows in by_transaction.items() if t >= record.since}
        large = [t for t, rows in wanted.items() if LARGE in rows]
        model: KafkaModel = run.notes["kafka"]
        sent: dict[int, str] = defaultdict(str)
        for log in model.topics[OUT].logs:
            for _, written in log.seen():
                sent[int(dict(written.headers)[TRANSACTION_HEADER])] += (written.value or b"").decode()
        got = {t: sorted(sent.get(t, "") + LARGE * (t in large)) for t in sent.keys() | set(large)}
        require(got == wanted, f"the topic has {got}, and table spans {wanted} from {record.since} on")
        name = f"tracelake-{record.id}"
        markers = model.topics[name].logs[0].seen() if name in model.topics else []
        times = [int(dict(each.headers)[TRANSACTION_HEADER]) for _, each in markers]
        require(times == sorted(wanted), f"there are markers of {times}, and batches of {sorted(wanted)}")
        left_out = OversizedRowStore(run.direct_key_value).all()
        named = [of.transaction for each in left_out.values() for of in each.newest]
        require(named == large, f"what is too large is in {large}, and named of {named}")


def rows_by_transaction(run: Run) -> dict[int, str]:
    """Return the rows of table `spans`, by transaction."""
    shard = Shard("spans", run.direct_key_value, run.direct_objects)
    upper = shard.state().upper
    rows: dict[int, str] = defaultdict(str)
    for part in shard.snapshot(upper - 1).parts if upper else []:
        rows[int(Path(part.path).name.partition("-")[0])] += run.objects.get(part.path).decode()
    return dict(rows)


def _marking(model: KafkaModel, writer: str, where: tuple[str, int]) -> Callable[[], None]:
    return lambda: model.write_marker(writer, where)


def _removing(model: KafkaModel, where: tuple[str, int], low: int) -> Callable[[], None]:
    return lambda: model.remove_below(where, low)
