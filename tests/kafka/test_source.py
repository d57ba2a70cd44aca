"""Kafka as a source, with a real broker: no message is lost or read twice, and expired ones are named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import tracelake
from tests.kafka.broker import Broker
from tests.patience import HANG_S, Patience, wait_until
from tests.pipeline.spans import a_line, a_span
from tracelake import InboxPipeline, Lake, SourceChangedError, UnreadInputsError
from tracelake.limits import TRANSACTION_TRIES_MAX
from tracelake.pipeline.kafka_client import PartitionName, library
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.sources import kafka as clusters
from tracelake.pipeline.sources.kafka import Cluster
from tracelake.tasks.runners import InProcess


@pytest.fixture
def lake() -> Iterator[Lake]:
    """A new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


def messages(numbers: Sequence[int]) -> list[bytes | None]:
    """Return messages as OpenTelemetry's Kafka exporter writes them: protobuf (the default) and JSON alternately."""
    return [a_request(number) if number % 2 else a_line(a_span(number, number)) for number in numbers]


def a_request(number: int) -> bytes:
    """Return an export request with one span, as protobuf."""
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id = (number + 1).to_bytes(16), (number + 1).to_bytes(8)
    span.name, span.start_time_unix_nano, span.end_time_unix_nano = "work", 1, 10
    return request.SerializeToString()


def watching(lake: Lake, broker: Broker, topic: str) -> InboxPipeline:
    """Return a pipeline that watches a topic."""
    return lake.pipeline(watch=[broker.url(topic)], runner=InProcess())


def spans(lake: Lake) -> list[int]:
    """Return the sorted numbers of the spans in the table, with duplicates."""
    return sorted(int(str(row), 16) - 1 for row in lake.table("spans").to_arrow()["span_id"].to_pylist())


def test_messages_of_protobuf_and_json_are_taken_once(lake: Lake, broker: Broker, topic: str) -> None:
    """One run ingests all messages of a topic, protobuf and JSON, and no pipeline reads them again."""
    broker.send(topic, messages(range(10)))
    pipeline = watching(lake, broker, topic)
    report = pipeline.run_once()
    assert report is not None
    assert (report.spans_new, report.bad, spans(lake)) == (10, (), list(range(10)))
    assert pipeline.run_once() is None
    assert watching(lake, broker, topic).run_once() is None
    broker.send(topic, messages(range(10, 13)))
    again = watching(lake, broker, topic).run_once()
    assert again is not None
    assert (again.spans_new, again.spans_repeated, spans(lake)) == (3, 0, list(range(13)))


def test_a_partition_that_is_added_is_taken(lake: Lake, broker: Broker, topic: str) -> None:
    """A continuous pipeline finds new partitions, and reads each from its beginning."""
    pipeline = watching(lake, broker, topic)
    broker.send(topic, messages([0, 1]))
    assert pipeline.run_once(goes_on=True) is not None
    broker.add_partitions(topic, 3)
    broker.send(topic, messages([2]), partition=1)
    broker.send(topic, messages([3]), partition=2)
    broker.send(topic, messages([4]))
    wait_until(lambda: pipeline.run_once(goes_on=True) is None and len(spans(lake)) == 5, "it is not found")
    assert spans(lake) == [0, 1, 2, 3, 4]


def test_a_message_that_is_no_otlp_is_named_and_kept_and_those_beside_it_are_taken(
    lake: Lake, broker: Broker, topic: str
) -> None:
    """A bad message is reported by offset and its range is copied, because the broker deletes it in time."""
    broker.send(topic, [*messages([0]), b"\xff\xff nonsense", *messages([1]), b"{not json", *messages([2])])
    report = watching(lake, broker, topic).run_once()
    assert report is not None
    assert spans(lake) == [0, 1, 2]
    (bad,) = report.bad
    assert [problem.offset for problem in bad.problems] == [1, 3]
    (kept,) = [info.path for info in lake.objects.list("quarantine/")]
    assert b"\xff\xff nonsense" in lake.objects.get(kept)
    assert watching(lake, broker, topic).run_once() is None


def test_messages_without_a_span_are_passed_by(lake: Lake, broker: Broker, topic: str) -> None:
    """A range of only bad messages makes no transaction, is reported, and is not read again."""
    broker.send(topic, [b"nonsense", b"\xff"])
    report = watching(lake, broker, topic).run_once()
    assert report is not None
    assert len(report.bad) == 1
    assert not report.transactions
    assert watching(lake, broker, topic).run_once() is None


def test_records_that_retention_removed_are_named_and_those_after_them_are_taken(
    lake: Lake, broker: Broker, topic: str
) -> None:
    """Records expired before they were read are quarantined by topic, partition and offsets; the user discards
    them."""
    broker.send(topic, messages(range(2)))
    pipeline = watching(lake, broker, topic)
    assert pipeline.run_once() is not None
    broker.send(topic, messages(range(2, 9)))
    broker.remove_below(topic, 0, 5)
    pipeline.run_once()
    assert spans(lake) == [0, 1, 5, 6, 7, 8]
    (lost,) = lake.quarantine.all()
    assert lost.state == "set aside"
    assert f"offsets 2 to 4 of partition 0 of topic {topic}" in lost.explain()
    assert pipeline.run_once() is None, "it waits for the user, and holds up nothing"
    broker.send(topic, messages([9]))
    assert pipeline.run_once() is not None
    lake.quarantine.discard(lost.transaction)
    assert pipeline.run_once() is None
    assert [item.state for item in lake.quarantine.all()] == ["discarded"]
    assert spans(lake) == [0, 1, 5, 6, 7, 8, 9]


def test_messages_that_are_corrupt_at_the_broker_are_named_at_once(
    lake: Lake, broker: Broker, topic: str
) -> None:
    """A corrupt range at the broker is quarantined at once by name, and later messages are read."""
    broker.send(topic, messages(range(2)))
    pipeline = watching(lake, broker, topic)
    assert pipeline.run_once() is not None
    broker.send(topic, messages([2]))  # sent separately, because the last batch is damaged
    broker.damage_end(topic)
    pipeline.run_once()
    (named,) = lake.quarantine.all()
    assert (named.state, named.tries) == ("set aside", TRANSACTION_TRIES_MAX)
    assert (
        f"messages of partition 0 of topic {topic} of Kafka at {broker.servers} from offset 2 on are corrupt"
        in named.explain()
    )
    broker.send(topic, messages([5]))
    assert pipeline.run_once() is not None
    assert spans(lake) == [0, 1, 5]
    lake.quarantine.discard(named.transaction)
    assert pipeline.run_once() is None


def test_what_was_gone_before_the_first_look_is_not_missed(lake: Lake, broker: Broker, topic: str) -> None:
    """A lake reads a topic from the first record that exists at that time."""
    broker.send(topic, messages(range(4)))
    broker.remove_below(topic, 0, 3)
    assert watching(lake, broker, topic).run_once() is not None
    assert spans(lake) == [3]
    assert lake.quarantine.all() == []


def record_and_die(pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """End a run once its transaction is recorded."""

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Outputs, "publish", die)
        with pytest.raises(RuntimeError, match="killed"):
            pipeline.run_once()


def test_j11_records_that_are_removed_before_they_are_replayed(
    lake: Lake, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded, unpublished transaction whose records expired is quarantined by name, and others continue (J11)."""
    broker.send(topic, messages(range(6)))
    record_and_die(watching(lake, broker, topic), monkeypatch)
    broker.remove_below(topic, 0, 2)
    broker.send(topic, messages(range(6, 8)))
    pipeline = watching(lake, broker, topic)
    wait_until(lambda: pipeline.run_once() is None)
    (lost,) = lake.quarantine.all()
    assert "offsets 0 to 1" in lost.reason
    assert spans(lake) == [6, 7]
    lake.quarantine.discard(lost.transaction)
    wait_until(lambda: pipeline.run_once() is None)
    assert spans(lake) == list(range(2, 8)), "what is left of its range is taken"


def test_j11_a_replay_that_reads_other_records_stops(
    lake: Lake, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a topic is deleted and recreated, a replay publishes nothing, and the error names the range (J11)."""
    broker.send(topic, messages(range(3)))
    record_and_die(watching(lake, broker, topic), monkeypatch)
    broker.delete_topic(topic)
    broker.make_topic(topic)
    broker.send(topic, messages(range(10, 13)))
    pipeline = watching(lake, broker, topic)
    with pytest.raises(SourceChangedError, match=topic):
        pipeline.run_once()
    lake.quarantine.discard(0)
    wait_until(lambda: pipeline.run_once() is None)
    assert spans(lake) == [10, 11, 12], "the topic that was made anew is another, from its beginning"


def test_compacted_topics_and_transactions_have_gaps_that_are_no_losses(lake: Lake, broker: Broker) -> None:
    """Offsets of compacted records, aborted transactions and markers are skipped; open transactions wait."""
    topic = broker.make_topic(
        f"compacted-{uuid.uuid4().hex}",
        config={
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
            "min.compaction.lag.ms": "0",
            "max.compaction.lag.ms": "100",
        },
    )
    broker.send(topic, messages(range(4)), key=b"same")
    broker.send(topic, [None], key=b"gone")
    producer = library().Producer(
        {"bootstrap.servers": broker.servers, "transactional.id": uuid.uuid4().hex, "log_level": 0}
    )
    producer.init_transactions(HANG_S)
    for numbers, end in (([4, 5], producer.commit_transaction), ([100, 101], producer.abort_transaction)):
        producer.begin_transaction()
        for message in messages(numbers):
            producer.produce(topic, message, f"key-{numbers}")
        assert producer.flush(HANG_S) == 0  # an abort drops unsent messages
        end(HANG_S)
        broker.settle(topic)

    def is_compacted() -> bool:
        broker.send(topic, [None], key=b"tick")  # only a full segment is compacted
        return [message.key() for message in broker.read(topic)].count(b"same") == 1

    wait_until(is_compacted, "nothing was compacted", poll_s=0.2)
    producer.begin_transaction()
    producer.produce(topic, messages([6])[0], "open")
    assert producer.flush(HANG_S) == 0
    pipeline = watching(lake, broker, topic)
    pipeline.run_once()
    taken = spans(lake)
    assert taken in ([3, 5], [3, 4, 5], [2, 3, 5]), "the last of each key, and nothing that was aborted"
    assert pipeline.run_once() is None, "an open transaction is not there yet"
    producer.commit_transaction(HANG_S)
    wait_until(lambda: pipeline.run_once() is not None)
    assert spans(lake) == [*taken, 6]
    assert lake.quarantine.all() == []
    assert pipeline.run_once() is None


def test_a_broker_that_goes_away_is_waited_for(
    lake: Lake, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While the broker is down, the error says so and other sources continue; afterwards its messages are read."""
    broker.send(topic, messages([0]))
    pipeline = lake.pipeline(watch=[broker.url(topic), f"{tmp_path}/*.jsonl"], runner=InProcess())
    assert pipeline.run_once() is not None
    broker.kill()
    file = tmp_path / "a.jsonl"
    file.write_bytes(a_line(a_span(1, 1)))
    os.utime(file, (time.time() - 1000, time.time() - 1000))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(clusters, "KAFKA_WAIT_S", 1.0)
            with pytest.raises(UnreadInputsError, match=broker.servers):
                pipeline.run_once()
        assert spans(lake) == [0, 1]
    finally:
        broker.start()
    broker.send(topic, messages([2]))
    wait_until(lambda: pipeline.run_once() is not None)
    assert spans(lake) == [0, 1, 2]


def test_a_broker_that_dies_between_the_look_and_the_read(
    lake: Lake, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that no broker returns waits and is reported; it is read once the broker is back."""
    broker.send(topic, messages(range(3)))
    pipeline = watching(lake, broker, topic)

    class Dying(InProcess):
        def run(self, *arguments, **named):  # type: ignore[no-untyped-def]  # as its base
            broker.kill()
            with monkeypatch.context() as patch:
                patch.setattr(clusters, "KAFKA_WAIT_S", 1.0)
                return super().run(*arguments, **named)

    dying = lake.pipeline(watch=[broker.url(topic)], runner=Dying())
    try:
        with pytest.raises(UnreadInputsError, match=topic):
            dying.run_once()
    finally:
        broker.start()
    wait_until(lambda: pipeline.run_once() is not None)
    assert spans(lake) == [0, 1, 2]
    assert lake.quarantine.all() == []


def test_a_long_aborted_stretch_is_passed_over(
    lake: Lake, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A long range of aborted messages is skipped however long the read takes, as long as it makes progress."""
    config = tmp_path / "kafka.properties"
    config.write_text("fetch.message.max.bytes=1000\nfetch.max.bytes=1000\nmessage.max.bytes=1000\n")
    producer = library().Producer(
        {
            "bootstrap.servers": broker.servers,
            "transactional.id": uuid.uuid4().hex,
            "batch.size": 1,
            "log_level": 0,
            "transaction.timeout.ms": 900_000,  # else a busy broker aborts it on the way
        }
    )
    producer.init_transactions(HANG_S)
    producer.begin_transaction()
    (message,) = messages([100])
    for _ in range(20_000):  # each in a separate reply
        producer.produce(topic, message)
        producer.poll(0)
    assert producer.flush(HANG_S) == 0  # an abort drops unsent messages
    producer.abort_transaction(HANG_S)
    broker.settle(topic)
    broker.send(topic, messages([1]))
    name, (low, end) = asked(lake, broker, topic)
    monkeypatch.setattr(clusters, "KAFKA_WAIT_S", 1.5)  # reading takes longer
    monkeypatch.setenv("TRACELAKE_KAFKA_CONFIG", str(config))
    assert end > 20_000
    cluster = Cluster(broker.servers)
    read = list(cluster.messages(name, low, end))
    assert [offset for offset, value in read if value is not None] == [end - 1]


def asked(lake: Lake, broker: Broker, topic: str) -> tuple[PartitionName, tuple[int, int]]:
    """Return the partition of a topic, and its range."""
    del lake
    cluster = Cluster(broker.servers)
    (name,) = cluster.partitions("id", topic)
    ends = cluster.ends([name])[name]
    return name, (ends.low, ends.end)


def test_a_message_that_is_larger_than_any_client_fetches_is_named(lake: Lake, broker: Broker) -> None:
    """A message above the client's fetch limit, which a topic may allow, is refused alone and by name."""
    topic = broker.make_topic(f"large-{uuid.uuid4().hex}", config={"max.message.bytes": "150000000"})
    broker.send(topic, messages([0]))
    broker.send(topic, [bytes(110_000_000)])
    broker.send(topic, messages([1]))
    report = watching(lake, broker, topic).run_once()
    assert report is not None
    assert spans(lake) == [0, 1]
    (bad,) = report.bad
    assert [problem.offset for problem in bad.problems] == [1]


def test_j8_a_pipeline_that_is_killed_at_random(broker: Broker, topic: str, tmp_path: Path) -> None:
    """A pipeline killed repeatedly with -9 while messages arrive ingests each message once (J8)."""
    lake = tracelake.init(tmp_path / "lake", buckets=2)
    sent = 0
    for kill in range(3):
        broker.send(topic, messages(range(sent, sent + 200)))
        sent += 200
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tracelake.cli", "pipeline", "run", "--lake", str(tmp_path / "lake")),
                *("--watch", broker.url(topic), "--interval", "0.05"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        patience = Patience()
        while len(commits := lake.branch("main").log(limit=1000)) <= kill:
            patience.look(len(commits), lambda: "nothing is committed")
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(HANG_S)
    pipeline = watching(lake, broker, topic)
    wait_until(lambda: pipeline.run_once() is None)
    assert spans(lake) == list(range(sent))
    lake.close()
