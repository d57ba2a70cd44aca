"""Packs: many traces in one object. A frame of zstd for each trace, and an index behind them.

The index is a skippable frame of zstd, so a pack is also one zstd file, and what it unpacks to is one `TracesData`:
messages of protobuf that stand one behind the other are one. `zstd -dc` and `tracelake ingest` read it as it is.

    frame of a trace | frame of a trace | … | 0x184D2A50 | length of the rest | index | its SHA-256 | its length | TLPK

Numbers have four bytes, the least first. The index is JSON: for each trace id offset, length and SHA-256 of its frame.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import zstandard

from tracelake._errors import DamageError

_SKIPPABLE: Final = (0x184D2A50).to_bytes(4, "little")
_END: Final = b"TLPK"
_HASH_BYTES: Final = hashlib.sha256().digest_size
_TAIL_BYTES: Final = _HASH_BYTES + 4 + len(_END)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a trace is in a pack."""

    offset: int
    length: int
    sha256: str


def write_pack(traces: Iterable[tuple[str, bytes]]) -> tuple[bytes, dict[str, Frame]]:
    """Return a pack of these traces, each a frame of zstd with its checksum, and where each is in it."""
    parts: list[bytes] = []
    frames: dict[str, Frame] = {}
    offset = 0
    for trace_id, frame in traces:
        frames[trace_id] = Frame(offset, len(frame), hashlib.sha256(frame).hexdigest())
        parts.append(frame)
        offset += len(frame)
    index = json.dumps({id: [at.offset, at.length, at.sha256] for id, at in frames.items()}).encode()
    tail = index + hashlib.sha256(index).digest() + len(index).to_bytes(4, "little") + _END
    return b"".join([*parts, _SKIPPABLE, len(tail).to_bytes(4, "little"), tail]), frames


def read_index(pack: bytes, name: str) -> dict[str, Frame]:
    """Return where each trace is. Raises DamageError, with the name of the pack."""
    index = b""
    if pack.endswith(_END) and len(pack) > _TAIL_BYTES:
        tail = pack[-_TAIL_BYTES:]
        start = len(pack) - _TAIL_BYTES - int.from_bytes(tail[_HASH_BYTES : -len(_END)], "little")
        index = pack[max(0, start) : len(pack) - _TAIL_BYTES]
        if start < 0 or hashlib.sha256(index).digest() != tail[:_HASH_BYTES]:
            index = b""
    if not index:
        raise DamageError(
            f"{name} is no whole pack: its index is cut or altered; restore the object from a copy"
        )
    return {id: Frame(*at) for id, at in json.loads(index).items()}


def check_pack(pack: bytes, name: str) -> None:
    """Compare each byte of a pack with its index. Raises DamageError, with the name of the pack."""
    end = 0
    for trace_id, at in read_index(pack, name).items():
        if hashlib.sha256(pack[at.offset : at.offset + at.length]).hexdigest() != at.sha256:
            raise DamageError(f"{name} is altered where trace {trace_id} is; restore the object from a copy")
        end = at.offset + at.length
    if pack[end : end + 8] != _SKIPPABLE + (len(pack) - end - 8).to_bytes(4, "little"):
        raise DamageError(f"{name} is altered before its index; restore the object from a copy")


def unpack(frame: bytes, name: str, max_bytes: int) -> bytes:
    """Return the trace in a frame. Raises DamageError, with the name of what it is in."""
    try:
        size_bytes = zstandard.frame_content_size(frame)
        if not 0 <= size_bytes <= max_bytes:
            raise DamageError(
                f"{name} says that it has {size_bytes} bytes, more than any trace; restore it from a copy"
            )
        return zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise DamageError(f"{name} cannot be unpacked: {error}; restore it from a copy") from error
