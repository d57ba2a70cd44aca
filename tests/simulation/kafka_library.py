"""Kafka's client library as a simulated actor uses it: each request is a step, whose reply may be lost.

It replaces `confluent_kafka`, so all our code above it really runs. As the real library does, it repeats requests
without a reply, then gives up with the library's error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from tests.simulation.kafka_model import End, KafkaModel, RefusedError, Where, Written
from tracelake._errors import StorageError
from tracelake.pipeline.kafka_client import library
from tracelake.testing import Process
from tracelake.testing.stores import Call, Touch

CLUSTER: Final = "cluster"
TRIES: Final = 2
FETCHED: Final = 2
"""Offsets in one reply; aborted messages alone fill some replies."""
POLL_S: Final = 0.1
REAL: Final = library()
CODES: Final = REAL.KafkaError


class SimulatedLibrary:
    """The library of one process."""

    def __init__(self, process: Process) -> None:
        self.KafkaException = REAL.KafkaException
        self.KafkaError = CODES
        self.TopicPartition = REAL.TopicPartition
        self.TopicCollection = list
        self.IsolationLevel = REAL.IsolationLevel
        self.Producer = lambda config: Producer(process, config["transactional.id"])
        self.Consumer = lambda config: Consumer(process, config)
        self.admin = SimpleNamespace(
            AdminClient=lambda _: Admin(process),
            OffsetSpec=REAL.admin.OffsetSpec,
            NewTopic=REAL.admin.NewTopic,
            ConfigResource=REAL.admin.ConfigResource,
        )


def model_of(process: Process) -> KafkaModel:
    """Return the cluster of a run."""
    model: KafkaModel = process.notes["kafka"]
    return model


def asked(process: Process, text: str, effect: Callable[[], Any], name: str, *, writes: bool) -> Any:
    """Send a request, and repeat it once if no reply comes. Raises KafkaException."""
    for left in reversed(range(TRIES)):
        try:
            return process.call(step(text, effect, name, writes=writes))
        except RefusedError as error:
            raise failure(error.code) from error
        except StorageError as error:
            if not left:
                raise failure("_TIMED_OUT") from error
    raise AssertionError


def step(text: str, effect: Callable[[], Any], name: str = "", *, writes: bool = True) -> Call:
    """Return a cluster step whose reply may be lost."""
    return Call(f"kafka: {text}", (Touch("kafka", name, False, writes),), effect)


def failure(code: str) -> Exception:
    """Return the library's exception."""
    raised: Exception = REAL.KafkaException(CODES(getattr(CODES, code), code))
    return raised


class Producer:
    """A transactional writer that sends a message as it is produced."""

    def __init__(self, process: Process, writer: str) -> None:
        self._process, self._writer, self._epoch = process, writer, -1
        self._numbers: dict[Where, int] = {}
        self._failed: Exception | None = None

    def init_transactions(self, timeout_s: float) -> None:
        """Get the epoch, once all earlier transactions are over."""
        until_s = self._process.now_s() + timeout_s
        while True:
            try:
                self._epoch = self._ask("begin", lambda model: model.begin(self._writer))
            except REAL.KafkaException as error:
                if error.args[0].code() != CODES.CONCURRENT_TRANSACTIONS or self._process.now_s() > until_s:
                    raise
                self._process.sleep(POLL_S)
            else:
                self._numbers = {}
                return

    def begin_transaction(self) -> None:
        """Begin; no request is sent."""
        self._failed, self._added = None, set[Where]()

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: str | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        on_delivery: Callable[[Any, Any], None] = lambda _error, _message: None,
    ) -> None:
        """Send a message to one of the partitions. A failure is reported at delivery and ends the transaction
        later."""
        if self._failed is not None:
            return
        partitions = len(model_of(self._process).topic(topic).logs)
        where = (topic, sum(self._numbers.values()) % partitions)
        number = self._numbers[where] = self._numbers.get(where, 0) + 1
        record = Written(
            self._writer, self._epoch, value, None if key is None else key.encode(), tuple(headers)
        )
        try:
            if where not in self._added:
                self._again("add", lambda model: model.add(self._writer, self._epoch, where))
                self._added.add(where)
            at = self._ask(f"append to {where}", lambda model: model.append(where, number, record), topic)
        except REAL.KafkaException as error:
            self._failed = error
            on_delivery(error.args[0], None)
        else:
            on_delivery(None, Message(at, record, None, where))

    def poll(self, timeout_s: float) -> int:
        """Deliver nothing, because delivery was reported at once."""
        del timeout_s
        return 0

    def flush(self, timeout_s: float) -> int:
        """Return the number of unsent messages, without a wait: each was sent as it was produced."""
        del timeout_s
        return 0

    def commit_transaction(self, timeout_s: float) -> None:
        """Commit the sent messages; their markers come later."""
        del timeout_s
        if self._failed is not None:
            raise self._failed
        self._end("commit")

    def abort_transaction(self, timeout_s: float) -> None:
        """Abort it."""
        del timeout_s
        self._end("abort")

    def _end(self, end: End) -> None:
        if not self._added:
            return  # nothing was sent, so no report is due
        self._ask(end, lambda model: model.end(self._writer, self._epoch, end))

    def _again(self, text: str, effect: Callable[[KafkaModel], Any]) -> None:
        """Retry until the previous transaction is over, as long as it takes: the run bounds it."""
        while True:
            try:
                self._ask(text, effect)
            except REAL.KafkaException as error:
                if error.args[0].code() != CODES.CONCURRENT_TRANSACTIONS:
                    raise
                self._process.sleep(POLL_S)
            else:
                return

    def _ask(self, text: str, effect: Callable[[KafkaModel], Any], name: str = "") -> Any:
        model = model_of(self._process)
        text = f"{self._writer[:12]} {self._epoch} {text}"
        return asked(self._process, text, lambda: effect(model), name or self._writer, writes=True)


class Consumer:
    """A reader of committed messages."""

    def __init__(self, process: Process, config: dict[str, Any]) -> None:
        assert config["isolation.level"] == "read_committed"
        self._process, self._told = process, config["stats_cb"]
        self._where, self._at = ("", 0), 0

    def assign(self, partitions: Sequence[Any]) -> None:
        """Start reading a partition at an offset."""
        (one,) = partitions
        self._where, self._at = (one.topic, one.partition), one.offset

    def consume(self, most: int, timeout_s: float) -> list[Any]:
        """Return the next messages, of few offsets; nothing if no broker answers in time."""
        del most
        model, start = model_of(self._process), self._at
        try:
            found, self._at = asked(
                self._process,
                f"fetch {self._where} at {start}",
                lambda: _fetched(model, self._where, start),
                self._where[0],
                writes=False,
            )
        except REAL.KafkaException:
            self._process.sleep(timeout_s)
            return []
        topic, partition = self._where
        statistics = {"topics": {topic: {"partitions": {str(partition): {"next_offset": self._at}}}}}
        self._told(json.dumps(statistics))
        return [Message(*each) for each in found]

    def close(self) -> None:
        """Stop reading; no resource is held."""


class Message:
    """A message, or the error in its place."""

    def __init__(
        self, offset: int, record: Written | None, code: int | None = None, where: Where = ("", 0)
    ) -> None:
        self._offset, self._record, self._code, self._where = offset, record, code, where

    def topic(self) -> str:
        """See the library."""
        return self._where[0]

    def partition(self) -> int:
        """See the library."""
        return self._where[1]

    def error(self) -> Any:
        """See the library."""
        return None if self._code is None else CODES(self._code)

    def offset(self) -> int:
        """See the library."""
        return self._offset

    def key(self) -> bytes | None:
        """See the library."""
        return None if self._record is None else self._record.key

    def value(self) -> bytes | None:
        """See the library."""
        return None if self._record is None else self._record.value


_Fetched: TypeAlias = tuple[tuple[int, Written | None, int | None], ...]


def _fetched(model: KafkaModel, where: Where, start: int) -> tuple[_Fetched, int]:
    log = model.log(where)
    if not log.low <= start <= len(log.records):
        return ((start, None, CODES._AUTO_OFFSET_RESET),), start
    stop = max(start, min(start + FETCHED, log.end()))
    messages: _Fetched = tuple((at, log.records[at], None) for at in range(start, stop) if log.is_seen(at))
    if stop >= log.end():
        messages = (*messages, (stop, None, CODES._PARTITION_EOF))
    return messages, stop


class Admin:
    """A client for topic metadata; it sends each request as its answer is waited for."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def describe_cluster(self, **_: Any) -> Any:
        """See the library."""
        return self._later("describe cluster", lambda _: CLUSTER, lambda of: SimpleNamespace(cluster_id=of))

    def describe_topics(self, names: Sequence[str], **_: Any) -> dict[str, Any]:
        """See the library."""

        def described(answer: tuple[str, int]) -> Any:
            partitions = [SimpleNamespace(id=number) for number in range(answer[1])]
            return SimpleNamespace(topic_id=answer[0], partitions=partitions)

        (name,) = names
        effect = lambda model: (model.topic(name).id, len(model.topic(name).logs))  # noqa: E731
        return {name: self._later(f"describe {name}", effect, described)}

    def list_offsets(self, specs: dict[Any, Any], **_: Any) -> dict[Any, Any]:
        """Return the offsets of committed messages; see the library."""
        return {where: self._offset(where, spec) for where, spec in specs.items()}

    def _offset(self, where: Any, spec: Any) -> Any:
        def offset(model: KafkaModel) -> int:
            log = model.log((where.topic, where.partition))
            return log.low if spec is REAL.admin.OffsetSpec.earliest() else log.end()

        text = f"{type(spec).__name__} of {where.topic} {where.partition}"
        return self._later(text, offset, lambda answer: SimpleNamespace(offset=answer))

    def describe_configs(self, resources: Sequence[Any], **_: Any) -> dict[Any, Any]:
        """See the library."""
        (resource,) = resources
        return {
            resource: self._later(
                f"settings of {resource.name}",
                lambda model: model.topic(resource.name).max_bytes,
                lambda answer: {"max.message.bytes": SimpleNamespace(value=str(answer))},
            )
        }

    def create_topics(self, topics: Sequence[Any], **_: Any) -> dict[str, Any]:
        """See the library."""
        (topic,) = topics
        effect = lambda model: model.make_topic(topic.topic)  # noqa: E731
        return {topic.topic: self._later(f"make {topic.topic}", effect, lambda answer: answer, writes=True)}

    def _later(
        self,
        text: str,
        effect: Callable[[KafkaModel], Any],
        wrap: Callable[[Any], Any],
        *,
        writes: bool = False,
    ) -> Any:
        model = model_of(self._process)
        ask = lambda _timeout_s: wrap(  # noqa: E731
            asked(self._process, text, lambda: effect(model), "", writes=writes)
        )
        return SimpleNamespace(result=ask)
