"""Apache Kafka broker in KRaft mode for tests, on free ports of this machine."""

from __future__ import annotations

import shutil
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.patience import HANG_S, wait_until
from tests.storage.servers.ports import free_port
from tracelake.pipeline.kafka_client import library

JARS: Final = Path(__file__).parents[2] / ".tools" / "kafka"
_JAVA: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{JARS}/*")
_STARTS_MAX: Final = 5
_LOGGING: Final = """
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""
_PROPERTIES: Final = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.check.interval.ms=200
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=4194304
log.cleaner.io.buffer.size=65536
log.segment.delete.delay.ms=100
socket.request.max.bytes=200000000
"""


class Broker:
    """Broker that keeps its port and its data when it is killed and restarted."""

    def __init__(self, directory: Path) -> None:
        """Make its storage and start it."""
        assert (JARS / "jars.sha256").exists(), "there is no broker here: run scripts/setup-kafka"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        for left in reversed(range(_STARTS_MAX)):  # another process may take a free port in the meantime
            try:
                self._make()
                self.start()
            except AssertionError:
                self.close()
                if not left:
                    raise
            else:
                return

    def _make(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        self.port = free_port()
        properties = self._directory / "server.properties"
        properties.write_text(
            _PROPERTIES.format(port=self.port, controller=free_port(), data=self._directory / "data")
        )
        (self._directory / "log4j2.properties").write_text(_LOGGING)
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        made = self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties))
        assert made.wait(HANG_S) == 0, self.log()

    def start(self) -> None:
        """Start it, and wait until it answers and leads all its partitions."""
        self._process = self._java("kafka.Kafka", str(self._directory / "server.properties"))
        deadline = time.monotonic() + HANG_S
        admin = self.admin()
        while True:
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            try:
                known = admin.list_topics(timeout=1)
            except library().KafkaException:
                pass
            else:
                every = [each for topic in known.topics.values() for each in topic.partitions.values()]
                if known.brokers and all(each.leader >= 0 for each in every):
                    return
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it as `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(HANG_S)
            self._process = None

    close = kill

    def restart(self) -> None:
        """Kill it, and start it with the same data."""
        self.kill()
        self.start()

    @property
    def servers(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    def url(self, topic: str) -> str:
        """Return the URL of a topic."""
        return f"kafka://{self.servers}/{topic}"

    def log(self) -> str:
        """Return the end of its log."""
        return (self._directory / "log").read_text(errors="replace")[-4000:]

    def admin(self) -> Any:
        """Return a client that makes topics."""
        return library().admin.AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def make_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Make a topic; return its name."""
        topic = library().admin.NewTopic(name, partitions, 1, config=dict(config or {}))
        admin = self.admin()  # the client must outlive its requests
        admin.create_topics([topic])[name].result(HANG_S)

        def is_led() -> bool:
            known = admin.list_topics(timeout=HANG_S).topics
            leaders = (
                [partition.leader for partition in known[name].partitions.values()] if name in known else []
            )
            return len(leaders) == partitions and min(leaders) >= 0

        wait_until(is_led, f"topic {name} has no leader")
        return name

    def add_partitions(self, topic: str, total: int) -> None:
        """Give a topic more partitions."""
        admin = self.admin()
        admin.create_partitions([library().admin.NewPartitions(topic, total)])[topic].result(HANG_S)

        def is_led() -> bool:
            known = admin.list_topics(timeout=HANG_S).topics[topic].partitions.values()
            return len(known) == total and all(partition.leader >= 0 for partition in known)

        wait_until(is_led, "no partition was added")

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(HANG_S)
        wait_until(lambda: topic not in admin.list_topics(timeout=HANG_S).topics, "a topic stays")

    def remove_below(self, topic: str, partition: int, offset: int) -> None:
        """Remove records below an offset, as retention does."""
        where = library().TopicPartition(topic, partition, offset)
        admin = self.admin()
        admin.delete_records([where])[where].result(HANG_S)

    def damage_end(self, topic: str, partition: int = 0) -> None:
        """Change a byte of the last messages of a partition on disk, to simulate disk damage."""
        (log,) = (self._directory / "data" / f"{topic}-{partition}").glob("*.log")
        with log.open("r+b") as file:
            file.seek(-10, 2)
            byte = file.read(1)[0]
            file.seek(-10, 2)
            file.write(bytes([byte ^ 0xFF]))

    def send(
        self, topic: str, values: Sequence[bytes | None], partition: int = 0, key: bytes | None = None
    ) -> None:
        """Send messages, and wait until the broker has them."""
        failures: list[object] = []
        producer = library().Producer(
            {
                "bootstrap.servers": self.servers,
                "log_level": 0,
                "linger.ms": 0,
                "message.max.bytes": 200_000_000,
            }
        )
        for value in values:
            producer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(HANG_S) == 0
        assert not failures

    def settle(self, topic: str) -> None:
        """Wait until no transaction of a topic is open: a commit or abort returns before its markers are written."""
        kafka = library()
        admin = self.admin()
        partitions = admin.list_topics(topic, timeout=HANG_S).topics[topic].partitions
        asked = {
            kafka.TopicPartition(topic, number): kafka.admin.OffsetSpec.latest() for number in partitions
        }

        def ends(level: Any) -> list[int]:
            futures = admin.list_offsets(asked, isolation_level=level)
            return [futures[each].result(HANG_S).offset for each in asked]

        levels = kafka.IsolationLevel
        wait_until(
            lambda: ends(levels.READ_COMMITTED) == ends(levels.READ_UNCOMMITTED),
            f"{topic} has an open transaction",
        )

    def read(self, topic: str, *, committed: bool = True, is_open: bool = False) -> list[Any]:
        """Return all messages of a topic, in order of partition and offset, as a consumer sees them.

        Wait until no transaction is open, unless one is expected to be open (`is_open`).
        """
        kafka = library()
        if committed and not is_open:
            self.settle(topic)
        consumer = kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "receive.message.max.bytes": 2**31 - 1,
                "log_level": 0,
            }
        )
        try:
            partitions = consumer.list_topics(topic, timeout=HANG_S).topics[topic].partitions
            consumer.assign([kafka.TopicPartition(topic, number, 0) for number in partitions])
            messages, ended = [], set[int]()
            deadline = time.monotonic() + HANG_S
            while len(ended) < len(partitions):
                assert time.monotonic() < deadline, f"{topic} cannot be read: {self.log()}"
                for message in consumer.consume(1000, 1.0):
                    if message.error() is None:
                        messages.append(message)
                    elif message.error().code() == kafka.KafkaError._PARTITION_EOF:
                        ended.add(message.partition())
            return sorted(messages, key=lambda message: (message.partition(), message.offset()))
        finally:
            consumer.close()

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._directory / "log").open("ab") as log:
            logging = f"-Dlog4j2.configurationFile={self._directory / 'log4j2.properties'}"
            return subprocess.Popen(
                ["java", *_JAVA, logging, main, *arguments], stdout=log, stderr=log, cwd=self._directory
            )
