"""The way to brokers of Kafka: an optional library, addresses, credentials, and what its failures are here.

Records of Kafka as a source: which offsets are taken, where a cluster is; and the names of ranges.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from tracelake._errors import DamageError, StorageError, UsageError
from tracelake.journal.model import OffsetRange
from tracelake.limits import KAFKA_CLIENTS_KEPT_MAX, KAFKA_WAIT_S

SCHEME: Final = "kafka"
CONFIG_VARIABLE: Final = "TRACELAKE_KAFKA_CONFIG"
"""Names a file of settings of the client, as for credentials, in the environment of each process."""
_ADDRESS: Final = re.compile(r"kafka://([^/@\s]+:\d+(?:,[^/@\s]+:\d+)*)/([A-Za-z0-9._-]{1,249})")


def library() -> Any:
    """Return the client library, which is optional. Raises UsageError where it is not installed."""
    try:
        import confluent_kafka.admin  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "Kafka needs the package confluent-kafka, which is not installed here. Run: pip install 'tracelake[kafka]'"
        ) from error
    return confluent_kafka


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """What `kafka://broker:9092,other:9092/topic` names."""

    servers: str
    topic: str


def address_of(url: str) -> TopicAddress:
    """Return what a URL names. Raises UsageError."""
    match = _ADDRESS.fullmatch(url)
    if match is None:
        # Without the address: what stands before an @ may be a secret.
        raise UsageError(
            "an address of Kafka names brokers and a topic, as kafka://broker1:9092,broker2:9092/otlp_spans. Leave "
            f"credentials to the file that {CONFIG_VARIABLE} names."
        )
    return TopicAddress(*match.groups())


def client_config(servers: str, **ours: Any) -> dict[str, Any]:
    """Return the settings of a client: what the user's file says, and above all what is ours. Raises UsageError."""
    return {
        "socket.connection.setup.timeout.ms": 5_000,
        "reconnect.backoff.max.ms": 1_000,
        **_user_config(os.environ.get(CONFIG_VARIABLE)),
        "bootstrap.servers": servers,
        "client.id": "tracelake",
        "log_level": 0,  # what fails is raised, and not written to standard error
        "allow.auto.create.topics": False,
        **ours,
    }


def _user_config(path: str | None) -> Mapping[str, str]:
    if not path:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{CONFIG_VARIABLE} names {path}, which cannot be read: {error}") from error
    config = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals:
            raise UsageError(f"{path}, line {number}: write name=value, as in security.protocol=SASL_SSL")
        config[name.strip()] = value.strip()
    return config


@contextmanager
def as_storage_error(what: str) -> Iterator[None]:
    """Raise what the client raises as a StorageError that says what failed."""
    kafka = library()
    try:
        yield
    except kafka.KafkaException as error:
        forget_clients()
        raise StorageError(f"{what}: {reason_of(error)}") from error
    except TimeoutError as error:
        raise StorageError(f"{what}: no broker answered within {KAFKA_WAIT_S:g} s") from error


def reason_of(error: Exception) -> str:
    """Return what went wrong, in words of the client."""
    first = error.args[0] if error.args else error
    text = first.str() if hasattr(first, "str") else str(first)
    code = first.name() if hasattr(first, "name") else ""
    return f"{text} ({code})" if code else text


def code_of(error: Exception) -> int | None:
    """Return the code of an error of the client."""
    first: Any = error.args[0] if error.args else None
    code: int | None = first.code() if hasattr(first, "code") else None
    return code


def admin_of(servers: str) -> Any:
    """Return a client that asks about topics: one for each process and address. Raises UsageError."""
    return _admin(servers, os.environ.get(CONFIG_VARIABLE), os.getpid())


_MAKING: Final = threading.Lock()


def forget_clients() -> None:
    """Let clients go after a failure: one that knew a broker before it was restarted may ask on as if it were not."""
    _kept_admin.cache_clear()


def _admin(servers: str, config: str | None, pid: int) -> Any:
    with _MAKING:
        return _kept_admin(servers, config, pid)


@lru_cache(maxsize=KAFKA_CLIENTS_KEPT_MAX)
def _kept_admin(servers: str, config: str | None, pid: int) -> Any:
    del config, pid  # with others it is another
    return new_client(library().admin.AdminClient, client_config(servers))


def new_client(kind: Any, config: dict[str, Any]) -> Any:
    """Return a new client. Raises UsageError for settings that it does not take."""
    try:
        return kind(config)
    except (library().KafkaException, ValueError, TypeError) as error:
        raise UsageError(f"the client of Kafka does not take its settings: {reason_of(error)}") from error


FORMAT_VERSION: Final = 1
_PATH: Final = re.compile(r"kafka/([^/]+)/([^/]+)/([^/]+)/(\d+)/(\d+)-(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class PartitionName:
    """One partition, which no other is ever taken for: a topic that is deleted and made anew has another id."""

    cluster: str
    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic}"

    def key(self) -> str:
        """Return its key in records."""
        return f"{self.cluster}/{self.topic}/{self.topic_id}/{self.partition:010d}"

    def path(self, start: int, stop: int) -> str:
        """Return the name of a range of it, as an input."""
        return f"kafka/{self.cluster}/{self.topic}/{self.topic_id}/{self.partition}/{start}-{stop}"


def name_of(path: str) -> tuple[PartitionName, int, int]:
    """Return what the name of a range says: its partition, the first offset, and the one behind the last."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise DamageError(f"{path!r} names no range of a partition of Kafka. Restore the journal.")
    cluster, topic, topic_id, partition, start, stop = match.groups()
    return PartitionName(cluster, topic, topic_id, int(partition)), int(start), int(stop)


def is_range(path: str) -> bool:
    """Whether a name is that of a range of Kafka."""
    return _PATH.fullmatch(path) is not None


def to_offset_range(path: str, **taken: Any) -> OffsetRange:
    """Return what was read of a range as the journal records it."""
    name, start, stop = name_of(path)
    return OffsetRange(
        cluster=name.cluster,
        topic=name.topic,
        topic_id=name.topic_id,
        partition=name.partition,
        start=start,
        stop=stop,
        **taken,
    )


class PartitionPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of one partition is taken."""

    taken: tuple[tuple[int, int], ...]
    """Ranges of offsets in order, none of which touches another; before the first look began, all that was gone."""
    mean_bytes: float | None = None
    """What an offset had in the mean, to cut ranges by."""
    format_version: int = FORMAT_VERSION


class ClusterRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where tasks find a cluster: its brokers as a pipeline was last told them. Credentials stand nowhere."""

    servers: str
    format_version: int = FORMAT_VERSION
