"""Inputs of a campaign: files that appear and grow, messages of a topic, and a record of everything sent."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.kafka.broker import Broker
from tests.pipeline.spans import a_line, a_span
from tracelake.pipeline.kafka_client import library

Key: TypeAlias = tuple[str, str]
"""Trace id and span id, in hexadecimal."""
SEND_MAX_S: Final = 600.0


class Sent:
    """Sent spans, by key, with their names; and the acknowledged ones among them."""

    def __init__(self) -> None:
        self.names: dict[Key, str] = {}
        self.sure: set[Key] = set()

    def spans(
        self, source: int, number: int, count: int, name: str
    ) -> tuple[list[dict[str, Any]], list[Key]]:
        """Return some spans of one trace as OTLP, and their keys."""
        spans = [a_span((source << 96) + number, each, name=name) for each in range(count)]
        keys = [(span["traceId"], span["spanId"]) for span in spans]
        self.names.update(dict.fromkeys(keys, name))
        return spans, keys


class Inputs:
    """Feeds files and a topic, each in a separate thread, unless paused."""

    def __init__(
        self, folder: Path, broker: Broker, topic: str, seed: int, may_send: Callable[[], bool]
    ) -> None:
        self.sent = Sent()
        self._folder, self._broker, self._topic = folder, broker, topic
        self._may_send = may_send
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=feed, args=(random.Random(seed + number),))
            for number, feed in enumerate((self._write_files, self._send_messages))
        ]
        self.failures: list[BaseException] = []
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop feeding; all sent input exists afterwards."""
        self._ending.set()
        for thread in self._threads:
            thread.join(SEND_MAX_S)
            assert not thread.is_alive(), "an input cannot be sent"
        assert not self.failures, self.failures

    def _goes_on(self, chance: random.Random) -> bool:
        while not self._ending.wait(chance.uniform(0.05, 0.5)):
            if self._may_send():
                return True
        return False

    def _write_files(self, chance: random.Random) -> None:
        """Write files in pieces, with pauses in between; one in ten exists twice, and some grow after a rest."""
        try:
            number = 0
            while self._goes_on(chance):
                number += 1
                path = self._folder / f"{number}.jsonl"
                for piece in range(chance.choice([1, 1, 2, 3])):
                    spans, keys = self.sent.spans(
                        1, number * 10 + piece, chance.randint(1, 20), f"file {number}"
                    )
                    line = a_line(*spans) + b"\n"
                    with path.open("ab") as file:
                        middle = chance.randrange(len(line))
                        file.write(line[:middle])
                        file.flush()
                        self._ending.wait(chance.choice([0.0, 0.0, 0.3]))
                        file.write(line[middle:])
                    self.sent.sure.update(keys)
                    self._ending.wait(chance.choice([0.0, 0.2, 3.0]))
                if chance.random() < 0.1:
                    (self._folder / f"{number}-again.jsonl").write_bytes(path.read_bytes())
        except BaseException as error:  # noqa: BLE001  told at the end
            self.failures.append(error)

    def _send_messages(self, chance: random.Random) -> None:
        """Send messages to any partition, although the broker may be away for a while."""
        try:
            producer = library().Producer(
                {
                    "bootstrap.servers": self._broker.servers,
                    "enable.idempotence": True,
                    "message.timeout.ms": int(SEND_MAX_S * 1000),
                    "log_level": 0,
                }
            )
            number = 0
            while self._goes_on(chance):
                number += 1
                spans, keys = self.sent.spans(2, number, chance.randint(1, 20), f"message {number}")

                def note(error: object, _message: object, keys: list[Key] = keys) -> None:
                    if error is None:
                        self.sent.sure.update(keys)

                producer.produce(self._topic, a_line(*spans), partition=chance.randrange(3), on_delivery=note)
                producer.poll(0)
            assert producer.flush(SEND_MAX_S) == 0, "messages cannot be sent"
        except BaseException as error:  # noqa: BLE001  told at the end
            self.failures.append(error)


def committed_spans(broker: Broker, topic: str, header: str) -> dict[int, list[Key]]:
    """Return the span keys that a consumer of committed messages sees, with repeats, by transaction."""
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData  # noqa: PLC0415

    by_transaction: dict[int, list[Key]] = {}
    for message in broker.read(topic):
        keys = by_transaction.setdefault(int(dict(message.headers())[header]), [])
        for resource in TracesData.FromString(message.value()).resource_spans:
            for scope in resource.scope_spans:
                keys += [(span.trace_id.hex(), span.span_id.hex()) for span in scope.spans]
    return by_transaction
