"""Access to Kafka: the optional client library, addresses, credentials, and error translation.

The module also defines the records of Kafka sources: taken offsets, cluster addresses, and names of offset ranges.
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
from tracelake.limits import KAFKA_WAIT_S

_KAFKA_CLIENTS_KEPT_MAX: Final = 16
"""Kafka clients that a process keeps."""

SCHEME: Final = "kafka"
CONFIG_VARIABLE: Final = "TRACELAKE_KAFKA_CONFIG"
"""Environment variable that names a file of client settings, such as credentials, in each process."""
_ADDRESS: Final = re.compile(r"kafka://([^/@\s]+:\d+(?:,[^/@\s]+:\d+)*)/([A-Za-z0-9._-]{1,249})")


def library() -> Any:
    """Return the optional client library. Raises UsageError if it is not installed."""
    try:
        import confluent_kafka.admin  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "Kafka needs the package confluent-kafka, which is not installed here. Run: pip install 'tracelake[kafka]'"
        ) from error
    return confluent_kafka


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """Brokers and topic of a URL such as `kafka://broker:9092,other:9092/topic`."""

    servers: str
    topic: str


def address_of(url: str) -> TopicAddress:
    """Parse a Kafka URL. Raises UsageError if it is invalid."""
    match = _ADDRESS.fullmatch(url)
    if match is None:
        # The message omits the address, because the text before an @ may be a secret.
        raise UsageError(
            "a Kafka address names brokers and a topic, such as kafka://broker1:9092,broker2:9092/otlp_spans. "
            f"Put credentials into the file that {CONFIG_VARIABLE} names."
        )
    return TopicAddress(*match.groups())


def client_config(servers: str, **ours: Any) -> dict[str, Any]:
    """Return the client settings: the user's file, overridden by Tracelake's. Raises UsageError if that file cannot be
    read or has an invalid line."""
    return {
        "socket.connection.setup.timeout.ms": 5_000,
        "reconnect.backoff.max.ms": 1_000,
        **_user_config(os.environ.get(CONFIG_VARIABLE)),
        "bootstrap.servers": servers,
        "client.id": "tracelake",
        "log_level": 0,  # errors are raised, not written to stderr
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
            raise UsageError(f"{path}, line {number}: write name=value, such as security.protocol=SASL_SSL")
        config[name.strip()] = value.strip()
    return config


@contextmanager
def as_storage_error(what: str) -> Iterator[None]:
    """Convert errors of the client to StorageError, prefixed with the failed operation."""
    kafka = library()
    try:
        yield
    except kafka.KafkaException as error:
        forget_clients()
        raise StorageError(f"{what}: {reason_of(error)}") from error
    except TimeoutError as error:
        raise StorageError(f"{what}: no broker answered within {KAFKA_WAIT_S:g} s") from error


def reason_of(error: Exception) -> str:
    """Return the client's text for an error."""
    first = error.args[0] if error.args else error
    text = first.str() if hasattr(first, "str") else str(first)
    code = first.name() if hasattr(first, "name") else ""
    return f"{text} ({code})" if code else text


def code_of(error: Exception) -> int | None:
    """Return the code of a client error, None if it has none."""
    first: Any = error.args[0] if error.args else None
    code: int | None = first.code() if hasattr(first, "code") else None
    return code


def admin_of(servers: str) -> Any:
    """Return the admin client, cached per process and address. Raises UsageError if the library is not installed or
    rejects the settings."""
    return _admin(servers, os.environ.get(CONFIG_VARIABLE), os.getpid())


_MAKING: Final = threading.Lock()


def forget_clients() -> None:
    """Drop cached clients after a failure, because a client may not notice that a broker was restarted."""
    _kept_admin.cache_clear()


def _admin(servers: str, config: str | None, pid: int) -> Any:
    with _MAKING:
        return _kept_admin(servers, config, pid)


@lru_cache(maxsize=_KAFKA_CLIENTS_KEPT_MAX)
def _kept_admin(servers: str, config: str | None, pid: int) -> Any:
    del config, pid  # part of the cache key
    return new_client(library().admin.AdminClient, client_config(servers))


def new_client(kind: Any, config: dict[str, Any]) -> Any:
    """Create a client. Raises UsageError if it rejects its settings."""
    try:
        return kind(config)
    except (library().KafkaException, ValueError, TypeError) as error:
        raise UsageError(f"the Kafka client refuses its settings: {reason_of(error)}") from error


FORMAT_VERSION: Final = 1
_PATH: Final = re.compile(r"kafka/([^/]+)/([^/]+)/([^/]+)/(\d+)/(\d+)-(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class PartitionName:
    """Unique name of a partition. A topic that is deleted and created again has another topic id."""

    cluster: str
    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic}"

    def key(self) -> str:
        """Return the key of the partition's records."""
        return f"{self.cluster}/{self.topic}/{self.topic_id}/{self.partition:010d}"

    def path(self, start: int, stop: int) -> str:
        """Return the input path of a range of offsets."""
        return f"kafka/{self.cluster}/{self.topic}/{self.topic_id}/{self.partition}/{start}-{stop}"


def name_of(path: str) -> tuple[PartitionName, int, int]:
    """Parse the path of a range. Return its partition, the first offset, and the offset after the last."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise DamageError(f"{path!r} is not a range of a Kafka partition. Restore the journal.")
    cluster, topic, topic_id, partition, start, stop = match.groups()
    return PartitionName(cluster, topic, topic_id, int(partition)), int(start), int(stop)


def is_range(path: str) -> bool:
    """Return whether a path names a range of Kafka offsets."""
    return _PATH.fullmatch(path) is not None


def to_offset_range(path: str, **fields: Any) -> OffsetRange:
    """Return the journal record of a range that was read."""
    name, start, stop = name_of(path)
    return OffsetRange(
        cluster=name.cluster,
        topic=name.topic,
        topic_id=name.topic_id,
        partition=name.partition,
        start=start,
        stop=stop,
        **fields,
    )


class PartitionPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Taken offsets of one partition."""

    taken: tuple[tuple[int, int], ...]
    """Sorted ranges of offsets that do not touch each other. Includes offsets that expired before the first poll."""
    mean_bytes: float | None = None
    """Mean bytes per offset, used to cut ranges."""
    format_version: int = FORMAT_VERSION


class ClusterRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Broker addresses of a cluster, as a pipeline last learned them. Tasks read them. Credentials are never stored."""

    servers: str
    format_version: int = FORMAT_VERSION
