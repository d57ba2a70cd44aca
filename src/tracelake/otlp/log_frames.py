"""A range of a log as a file: its messages in order, each with its offset. Tasks read it as they read any input.

`TLLOG1` newline, then frames: a letter, the offset (8 bytes, big-endian), a length (4 bytes), so many bytes.

| letter | bytes |
|---|---|
| `m` | a message: OTLP protobuf, or JSON where it begins with `{` |
| `x` | why a message cannot be taken |
| `r` | why messages are gone, or corrupt: whoever reads on fails, for none of them may be missed in silence |
"""

from __future__ import annotations

from typing import Final

from tracelake.limits import OTLP_LINE_MAX_BYTES

LOG_MAGIC: Final = b"TLLOG1\n"
MESSAGE, REFUSED, REMOVED = b"m", b"x", b"r"


def log_frame(offset: int, value: bytes) -> bytes:
    """Return the frame of a message."""
    if len(value) > OTLP_LINE_MAX_BYTES:
        return _frame(REFUSED, offset, f"message longer than {OTLP_LINE_MAX_BYTES} bytes".encode())
    return _frame(MESSAGE, offset, value)


def removed_frame(offset: int, reason: str) -> bytes:
    """Return the frame that says that messages from an offset on were removed."""
    return _frame(REMOVED, offset, reason.encode())


def is_json(value: bytes) -> bool:
    """Whether a message is JSON: no protobuf message of OTLP traces begins so."""
    return value.lstrip()[:1] == b"{"


def _frame(kind: bytes, offset: int, data: bytes) -> bytes:
    return kind + offset.to_bytes(8) + len(data).to_bytes(4) + data
