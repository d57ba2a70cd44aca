"""Kafka as an output, with a real broker: a read-committed consumer sees each transaction exactly once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

import tracelake
from tests.kafka.broker import Broker
from tests.kafka.test_source import messages
from tests.patience import HANG_S, Patience, wait_until
from tests.pipeline.spans import a_line, a_span
from tracelake import DamageError, Lake, StorageError
from tracelake.otlp.framing import write_segment
from tracelake.pipeline.kafka_client import library
from tracelake.pipeline.outputs import configured as sinks
from tracelake.pipeline.outputs.builtin import CommitOutput
from tracelake.pipeline.outputs.configured import TRANSACTION_HEADER, KafkaSink
from tracelake.pipeline.outputs.external import OversizedRowStore
from tracelake.tasks.runners import InProcess


@pytest.fixture
def lake() -> Iterator[Lake]:
    """A new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


def arrive(lake: Lake, *numbers: int) -> None:
    """Put a segment with some spans into the inbox."""
    data = write_segment([("json", a_line(*(a_span(number, number) for number in numbers)))])
    lake.objects.put(f"inbox/{uuid.uuid4().hex}.segment", data)


def seen(
    broker: Broker, topic: str, *, committed: bool = True, is_open: bool = False
) -> dict[int, list[int]]:
    """Return the numbers of the spans that a consumer sees, with repetitions, by transaction."""
    by_transaction: dict[int, list[int]] = defaultdict(list)
    for message in broker.read(topic, committed=committed, is_open=is_open):
        t = int(dict(message.headers())[TRANSACTION_HEADER])
        for resource in TracesData.FromString(message.value()).resource_spans:
            for scope in resource.scope_spans:
                by_transaction[t] += [int.from_bytes(span.span_id) - 1 for span in scope.spans]
    return {t: sorted(numbers) for t, numbers in sorted(by_transaction.items())}


def markers(broker: Broker, lake: Lake) -> list[int]:
    """Return the transactions of the markers, in order."""
    (info,) = lake.outputs.all()
    return [int(dict(each.headers())[TRANSACTION_HEADER]) for each in broker.read(f"tracelake-{info.id}")]


def test_each_transaction_is_there_once(lake: Lake, broker: Broker, topic: str) -> None:
    """With two replicas in turn and a broker restart, each transaction is written once, and no batch is empty
    (J14)."""
    broker.add_partitions(topic, 3)
    lake.outputs.add("stream", broker.url(topic))
    a, b = (lake.pipeline(replica=name, runner=InProcess()) for name in "ab")
    for number, pipeline in enumerate((a, b, a, b)):
        arrive(lake, number, number + 100)
        assert pipeline.run_once() is not None
        if number == 1:
            broker.restart()
    arrive(lake, 3)  # again
    assert a.run_once() is not None
    arrive(lake, 4)
    assert b.run_once() is not None
    # the output was added before transaction 0, which another replica might have begun already
    assert seen(broker, topic) == {1: [1, 101], 2: [2, 102], 3: [3, 103], 5: [4]}
    assert markers(broker, lake) == [1, 2, 3, 5], "strictly increasing, and none for an empty transaction"
    assert explained(lake, range(6)) == by_offsets(broker, topic)


def explained(lake: Lake, transactions: range) -> dict[int, list[tuple[int, int, int, int]]]:
    """Return partition, first and last offset, and messages of each nonempty transaction, from `explain`."""
    outputs = ((t, each) for t in transactions for each in lake.journal.explain(t).outputs if each.offsets)
    return {
        t: [(at.partition, at.start, at.stop - 1, at.messages) for at in each.offsets] for t, each in outputs
    }


def by_offsets(broker: Broker, topic: str) -> dict[int, list[tuple[int, int, int, int]]]:
    """Return the same facts as a read-committed consumer sees them."""
    offsets: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for message in broker.read(topic):
        t = int(dict(message.headers())[TRANSACTION_HEADER])
        offsets[t][message.partition()].append(message.offset())
    return {
        t: [(partition, min(at), max(at), len(at)) for partition, at in sorted(of.items())]
        for t, of in offsets.items()
    }


def test_j6_a_writer_that_stops_inside_its_transaction_is_fenced(
    lake: Lake, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a transaction is never visible; its writer is fenced, and a peer writes all of it (J6)."""
    lake.outputs.add("stream", broker.url(topic))
    stopped, peer = (lake.pipeline(replica=name, runner=InProcess()) for name in "ab")
    arrive(lake, 0)
    assert stopped.run_once() is not None
    arrive(lake, 1, 2, 3)
    produce = KafkaSink._produce
    halves: list[KafkaSink] = []

    def stop(self: KafkaSink, to: str, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        produce(self, to, value, headers)
        self._producer.flush(HANG_S)  # the broker has it
        if not halves:
            halves.append(self)
            self._kept = self._producer  # type: ignore[attr-defined]
            raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(KafkaSink, "_produce", stop)
        with pytest.raises(RuntimeError, match="stopped"):
            stopped.run_once()
    assert seen(broker, topic, is_open=True) == {}
    assert list(seen(broker, topic, committed=False)) == [1]
    wait_until(lambda: peer.run_once() is None)
    assert seen(broker, topic) == {1: [1, 2, 3]}
    late = halves[0]._kept  # type: ignore[attr-defined]
    with pytest.raises(library().KafkaException, match=r"(?i)fenced|epoch|state"):
        late.commit_transaction(HANG_S)
    arrive(lake, 4)
    wait_until(lambda: stopped.run_once() is None)
    assert seen(broker, topic) == {1: [1, 2, 3], 2: [4]}
    assert markers(broker, lake) == [1, 2]


def test_j7_a_writer_that_dies_after_its_transaction(
    lake: Lake, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a writer dies after its Kafka transaction, the next run finds its marker, commits, and writes nothing
    (J7)."""
    lake.outputs.add("stream", broker.url(topic))
    pipeline = lake.pipeline(runner=InProcess())
    arrive(lake, 0)
    assert pipeline.run_once() is not None

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    arrive(lake, 1)
    with monkeypatch.context() as patch:
        patch.setattr(CommitOutput, "publish", die)
        with pytest.raises(RuntimeError, match="killed"):
            pipeline.run_once()
    assert seen(broker, topic) == {1: [1]}
    wait_until(lambda: lake.pipeline(runner=InProcess()).run_once() is None)
    assert seen(broker, topic, committed=False) == {1: [1]}
    assert len(lake.branch("main").log()) == 2
    assert explained(lake, range(2)) == by_offsets(broker, topic)


@pytest.mark.parametrize("depth", [1, 3])
def test_what_the_client_raises_while_it_calls_back_is_its_own_error(depth: int) -> None:
    """A fatal client error is raised as such, although Python makes a SystemError of each later callback."""
    kafka = library()
    raised: Exception = kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._FENCED, "fenced"))
    for _ in range(depth):
        outer = SystemError("a function returned a result with an exception set")
        outer.__cause__ = raised
        raised = outer

    def serve(_: float) -> int:
        raise raised

    sink = KafkaSink.__new__(KafkaSink)  # this needs no broker
    with pytest.raises(kafka.KafkaException, match="fenced"):
        sink._called_back(serve, 1.0)


def test_a_broker_that_is_gone_holds_the_commit_back(
    lake: Lake, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the broker is down, the commit waits and the error names output and brokers; then all is written."""
    lake.outputs.add("stream", broker.url(topic))
    pipeline = lake.pipeline(runner=InProcess())
    for number in range(2):
        arrive(lake, number)
        assert pipeline.run_once() is not None
    broker.kill()
    try:
        arrive(lake, 2)
        with monkeypatch.context() as patch:
            patch.setattr(sinks, "KAFKA_WAIT_S", 1.0)
            patch.setattr(sinks, "KAFKA_TRANSACTION_MAX_S", 2.0)
            with pytest.raises(StorageError, match=f"output stream, transaction 2: .*{broker.servers}"):
                pipeline.run_once()
        assert len(lake.branch("main").log()) == 2
    finally:
        broker.start()
    patience = Patience()
    while len(lake.branch("main").log()) < 3:
        patience.look(None, lambda: "it does not go on")
        try:
            pipeline.run_once()
        except StorageError:
            time.sleep(0.1)
    assert seen(broker, topic) == {1: [1], 2: [2]}


def large(number: int, size_bytes: int) -> bytes:
    """Return a line with one span, whose text does not compress."""
    return a_line({**a_span(number, number), "name": random.Random(number).randbytes(size_bytes // 2).hex()})


def test_a_span_that_the_topic_does_not_take_is_left_out_by_name(
    lake: Lake, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A span too large for the topic is left out and named once, even after a crash; others are written."""
    topic = broker.make_topic(f"small-{uuid.uuid4().hex}", config={"max.message.bytes": "20000"})
    lake.outputs.add("stream", broker.url(topic))
    arrive(lake, 0)
    pipeline = lake.pipeline(runner=InProcess())
    assert pipeline.run_once() is not None
    few = [a_line(*(a_span(number, number) for number in range(1, 200)))]
    data = write_segment([("json", line) for line in [*few, large(1000, 50_000), large(1001, 15_000)]])
    lake.objects.put("inbox/1.segment", data)

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(OversizedRowStore, "note", die)
        with pytest.raises(RuntimeError, match="killed"):
            pipeline.run_once()
    lake.objects.put("inbox/2.segment", write_segment([("json", large(1002, 60_000))]))  # and nothing else
    pipeline = lake.pipeline(runner=InProcess())
    pipeline.run_once()
    arrive(lake, 2000)
    assert pipeline.run_once() is not None
    assert seen(broker, topic) == {1: [*range(1, 200), 1001], 3: [2000]}
    assert markers(broker, lake) == [1, 2, 3]
    (info,) = lake.outputs.all()
    assert info.left_out_total == 2
    assert [each.transaction for each in info.left_out] == [1, 2]
    assert f"{1001:032x}" in info.left_out[0].row
    assert lake.verify().ok


def test_a_broker_that_refuses_what_was_thought_to_fit_is_believed(
    lake: Lake, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the broker knows the compressed size of a batch, so a span that it refuses is left out then."""
    topic = broker.make_topic(f"small-{uuid.uuid4().hex}", config={"max.message.bytes": "20000"})
    lake.outputs.add("stream", broker.url(topic))
    arrive(lake, 0)
    assert lake.pipeline(runner=InProcess()).run_once() is not None
    monkeypatch.setattr(pa, "compress", lambda *_, **__: b"")
    lake.objects.put(
        "inbox/1.segment", write_segment([("json", a_line(a_span(1, 1))), ("json", large(2, 50_000))])
    )
    assert lake.pipeline(runner=InProcess()).run_once() is not None
    assert seen(broker, topic) == {1: [1]}
    assert lake.outputs.all()[0].left_out_total == 1


def test_large_spans_go_out_where_the_topic_takes_them(lake: Lake, broker: Broker) -> None:
    """Large compressible spans are written beyond the topic's limit; others are written up to it."""
    topic = broker.make_topic(f"large-{uuid.uuid4().hex}", config={"max.message.bytes": "8000000"})
    lake.outputs.add("stream", broker.url(topic))
    arrive(lake, 0)
    assert lake.pipeline(runner=InProcess()).run_once() is not None
    flat = a_line({**a_span(2, 2), "name": "x" * 12_000_000})
    lake.objects.put("inbox/1.segment", write_segment([("json", large(1, 7_000_000)), ("json", flat)]))
    assert lake.pipeline(runner=InProcess()).run_once() is not None
    assert seen(broker, topic) == {1: [1, 2]}


def test_what_others_write_to_the_topic_of_markers(lake: Lake, broker: Broker, topic: str) -> None:
    """Foreign records in the marker topic are skipped; one in the place of a marker stops the output with a remedy."""
    lake.outputs.add("stream", broker.url(topic))
    for number in range(2):
        arrive(lake, number)
        assert lake.pipeline(runner=InProcess()).run_once() is not None
    (info,) = lake.outputs.all()
    markers_topic = f"tracelake-{info.id}"
    broker.send(markers_topic, [b"nonsense", None], key=b"other")
    arrive(lake, 2)
    assert lake.pipeline(runner=InProcess()).run_once() is not None
    assert seen(broker, topic) == {1: [1], 2: [2]}
    broker.send(markers_topic, [b"nonsense"], key=info.id.encode())
    arrive(lake, 3)
    with pytest.raises(DamageError, match="another producer has written offset"):
        lake.pipeline(runner=InProcess()).run_once()
    lake.outputs.remove("stream")
    assert lake.pipeline(runner=InProcess()).run_once() is not None


def test_j8_from_topic_to_topic_whoever_is_killed(broker: Broker, topic: str, tmp_path: Path) -> None:
    """With pipelines killed by -9 at any moment, each span is ingested once and written once (J8)."""
    lake = tracelake.init(tmp_path / "lake", buckets=2)
    out = broker.make_topic(f"out-{uuid.uuid4().hex}", 2)
    arrive(lake, 5000)
    lake.pipeline(runner=InProcess()).run_once()  # so that the output has the next one
    lake.outputs.add("stream", broker.url(out))
    arrive(lake, 5001)
    lake.pipeline(runner=InProcess()).run_once()
    sent = 0
    command = [
        *(sys.executable, "-m", "tracelake.cli", "pipeline", "run", "--lake", str(tmp_path / "lake")),
        *("--watch", broker.url(topic), "--interval", "0.05"),
    ]
    for kill in range(3):
        broker.send(topic, messages(range(sent, sent + 100)))
        sent += 100
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        patience = Patience()
        while (transactions := len(broker.read(out, committed=False))) <= kill:
            patience.look(transactions, lambda: "nothing goes out")
        process.send_signal(signal.SIGKILL)
        process.wait(HANG_S)
    pipeline = lake.pipeline(watch=[broker.url(topic)], runner=InProcess())
    wait_until(lambda: pipeline.run_once() is None)
    gone_out = seen(broker, out)
    assert sorted(number for numbers in gone_out.values() for number in numbers) == list(range(sent))
    assert markers(broker, lake) == list(gone_out)
    lake.close()
