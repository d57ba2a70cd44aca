"""A Kafka broker as a model without threads: each method is one request, which is carried out at once or refused.

It keeps exactly the promises of Kafka's transaction protocol:

- One transactional id has one writer: each new writer gets a higher epoch, and older ones are refused.
- The coordinator answers a commit or abort once it is recorded.
- Markers reach the partitions later, one by one. Only then do consumers of committed messages see the transaction.
- A request for an id with an open transaction aborts it, and gets no epoch before all markers are written.
- A message that is sent again after a lost reply exists once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

End: TypeAlias = Literal["commit", "abort"]
Where: TypeAlias = tuple[str, int]
"""Topic and number of a partition."""


class RefusedError(Exception):
    """The broker refuses a request; `code` is the client library's name of the reason."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Written(NamedTuple):
    """One record of a partition: a writer's message, or an end marker."""

    writer: str
    epoch: int
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    end: End | None = None


@dataclass
class Log:
    """One partition."""

    records: list[Written] = field(default_factory=list)
    low: int = 0
    """The first offset after retention."""
    opened: dict[str, int] = field(default_factory=dict)
    """Start of each writer's open transaction here."""
    aborted: set[int] = field(default_factory=set)
    """Offsets of aborted messages."""
    epochs: dict[str, int] = field(default_factory=dict)
    last: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Epoch and number of each writer's last message."""

    def end(self, *, committed: bool = True) -> int:
        """Return the last stable offset: the first one of an open transaction, or the log's end."""
        return min([*self.opened.values(), len(self.records)]) if committed else len(self.records)

    def seen(self) -> list[tuple[int, Written]]:
        """Return the messages that a consumer of committed messages sees, with their offsets."""
        numbered = enumerate(self.records[: self.end()])
        return [(at, each) for at, each in numbered if self.is_seen(at) and at >= self.low]

    def is_seen(self, offset: int) -> bool:
        """Return whether it is a message that was not aborted."""
        return self.records[offset].end is None and offset not in self.aborted


@dataclass
class _Transaction:
    """State of a transactional id at the coordinator."""

    epoch: int = -1
    partitions: set[Where] = field(default_factory=set)
    ending: End | None = None
    """End whose markers are being written."""
    left: list[Where] = field(default_factory=list)
    over: End | None = None
    """End of the last transaction of this epoch."""


@dataclass
class Topic:
    """A topic, identified by its id: a recreated one is another."""

    id: str
    max_bytes: int
    logs: list[Log]


class KafkaModel:
    """All topics and transactions of a cluster."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self._transactions: dict[str, _Transaction] = {}

    def make_topic(self, name: str, partitions: int = 1, max_bytes: int = 1_000_000) -> None:
        """Make a topic."""
        if name in self.topics:
            raise RefusedError("TOPIC_ALREADY_EXISTS")
        self.topics[name] = Topic(f"id-{name}", max_bytes, [Log() for _ in range(partitions)])

    def topic(self, name: str) -> Topic:
        """Return a topic."""
        if name not in self.topics:
            raise RefusedError("UNKNOWN_TOPIC_OR_PART")
        return self.topics[name]

    def log(self, where: Where) -> Log:
        """Return a partition."""
        return self.topic(where[0]).logs[where[1]]

    def begin(self, writer: str) -> int:
        """Return a new epoch for a writer; refuse while an earlier transaction is not over."""
        known = self._transactions.setdefault(writer, _Transaction())
        if known.ending is None and known.partitions:
            known.epoch += 1
            self._end(known, "abort")
        if known.ending is not None:
            raise RefusedError("CONCURRENT_TRANSACTIONS")
        known.epoch, known.over = known.epoch + 1, None
        return known.epoch

    def add(self, writer: str, epoch: int, where: Where) -> None:
        """Add a partition to a writer's transaction."""
        known = self._of(writer, epoch)
        if known.ending is not None:
            raise RefusedError("CONCURRENT_TRANSACTIONS")
        known.partitions.add(where)

    def append(self, where: Where, number: int, record: Written) -> int:
        """Append a message with its sequence number in this writer's epoch, unless it exists; return its offset."""
        log = self.log(where)
        if record.epoch < log.epochs.get(record.writer, -1):
            raise RefusedError("INVALID_PRODUCER_EPOCH")
        if (record.epoch, number) <= log.last.get(record.writer, (-1, -1)):
            return max(at for at, each in enumerate(log.records) if each[:3] == record[:3])
        if len(record.value or b"") > self.topic(where[0]).max_bytes:
            raise RefusedError("MSG_SIZE_TOO_LARGE")
        if record.writer not in log.opened:  # the partition asks the coordinator, before the first one
            known = self._of(record.writer, record.epoch)
            if known.ending is not None or where not in known.partitions:
                raise RefusedError("INVALID_TXN_STATE")
            log.opened[record.writer] = len(log.records)
        log.epochs[record.writer] = record.epoch
        log.last[record.writer] = (record.epoch, number)
        log.records.append(record)
        return len(log.records) - 1

    def end(self, writer: str, epoch: int, end: End) -> None:
        """End a writer's transaction; idempotent."""
        known = self._of(writer, epoch)
        if known.ending == end or (not known.partitions and known.over == end):
            return
        if known.ending is not None or not known.partitions:
            raise RefusedError("INVALID_TXN_STATE")
        self._end(known, end)

    def markers(self) -> list[tuple[str, Where]]:
        """Return the markers to write, by writer and partition."""
        return [(writer, where) for writer, known in self._transactions.items() for where in known.left]

    def write_marker(self, writer: str, where: Where) -> None:
        """Write one marker; idempotent."""
        known, log = self._transactions[writer], self.log(where)
        if where not in known.left:
            return
        assert known.ending is not None
        known.left.remove(where)
        start = log.opened.pop(writer, len(log.records))
        if known.ending == "abort":
            own = range(start, len(log.records))
            log.aborted |= {at for at in own if log.records[at].writer == writer}
        log.epochs[writer] = known.epoch
        log.records.append(Written(writer, known.epoch, None, end=known.ending))
        if not known.left:
            known.partitions, known.over, known.ending = set(), known.ending, None

    def remove_below(self, where: Where, offset: int) -> None:
        """Remove the messages below an offset, as retention does."""
        log = self.log(where)
        log.low = max(log.low, min(offset, log.end()))

    def _of(self, writer: str, epoch: int) -> _Transaction:
        known = self._transactions[writer]
        if epoch != known.epoch:
            raise RefusedError("_FENCED")
        return known

    @staticmethod
    def _end(known: _Transaction, end: End) -> None:
        known.ending, known.left = end, sorted(known.partitions)
