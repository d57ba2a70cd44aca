"""What differs between spans that came as protobuf and spans that came as JSON: ids and presence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tracelake.otlp.messages import Message
from tracelake.otlp.values import RefusedError


class Dialect(Protocol):
    """Reads the fields that the two inputs hold differently, for many spans at once."""

    def ids(self, values: list[Message], field: str, size: int) -> list[str]:
        """Return ids of `size` bytes as lower-case hex. Raises RefusedError for any other length."""

    def loose_ids(self, values: list[Message], field: str) -> list[str]:
        """Return ids of any length as lower-case hex. Raises RefusedError where they are not hex."""

    def statuses(self, spans: Sequence[Message]) -> list[Message | None]:
        """Return each span's status, None where it has none."""


@dataclass(frozen=True, slots=True)
class ProtobufDialect:
    """Ids are bytes; presence is asked for with HasField."""

    def ids(self, values: list[Message], field: str, size: int) -> list[str]:
        """Return ids of `size` bytes as lower-case hex. Raises RefusedError for any other length."""
        for length in set(map(len, values)):
            if length != size:
                raise RefusedError(f"{field}: {length} bytes, must be {size}")
        return [value.hex() for value in values]

    def loose_ids(self, values: list[Message], field: str) -> list[str]:  # noqa: ARG002 - as the protocol
        """Return ids of any length, also empty, as lower-case hex."""
        return [value.hex() for value in values]

    def statuses(self, spans: Sequence[Message]) -> list[Message | None]:
        """Return each span's status, None where it has none."""
        return [span.status if span.HasField("status") else None for span in spans]


@dataclass(frozen=True, slots=True)
class JsonDialect:
    """Ids are hex in either case; an absent message is None."""

    def ids(self, values: list[Message], field: str, size: int) -> list[str]:
        """Return ids of `size` bytes as lower-case hex. Raises RefusedError for any other length."""
        for length in set(map(len, values)):
            if length != 2 * size:
                raise RefusedError(f"{field}: {length} hex digits, must be {2 * size}")
        return _lower_hex(values, field)

    def loose_ids(self, values: list[Message], field: str) -> list[str]:
        """Return ids of any length as lower-case hex. Raises RefusedError where they are not hex."""
        for value in values:
            if len(value) % 2:
                raise RefusedError(f"{field}: {len(value)} hex digits, must be an even number")
        return _lower_hex(values, field)

    def statuses(self, spans: Sequence[Message]) -> list[Message | None]:
        """Return each span's status, None where it has none."""
        return [span.status for span in spans]


def _lower_hex(values: list[Message], field: str) -> list[str]:
    joined = "".join(values)
    try:
        decoded = bytes.fromhex(joined)
    except ValueError:
        decoded = b""
    if 2 * len(decoded) != len(joined):  # not hex at all, or white space, which fromhex() skips
        raise RefusedError(f"{field}: not hex")
    return values if joined == joined.lower() else [value.lower() for value in values]


PROTOBUF: Final = ProtobufDialect()
JSON: Final = JsonDialect()
