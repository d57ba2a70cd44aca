"""Reading a small segment at once gives the same result as reading it in pieces, for any bytes."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import zstandard

from tracelake.otlp import framing
from tracelake.otlp.framing import (
    Format,
    Payload,
    Reading,
    segment_of_frames,
    segment_of_frames_bytes,
    write_segment,
)


def segments(chance: random.Random) -> list[bytes]:
    """Return segments, intact and altered in all ways, and other files."""
    kinds: list[Format] = ["json", "protobuf"]
    payloads = [
        (chance.choice(kinds), chance.randbytes(chance.randrange(60))) for _ in range(chance.randrange(5))
    ]
    whole = write_segment(payloads)
    plain = zstandard.decompress(whole)
    flipped = bytearray(whole)
    flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
    compress = zstandard.ZstdCompressor(level=1, write_checksum=True).compress
    frames = [(len(data), compress(data)) for _, data in payloads if data]
    framed = segment_of_frames(frames)
    altered = bytearray(framed + b"x")
    altered[chance.randrange(len(altered))] ^= 1 << chance.randrange(8)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress
    cut = plain[: chance.randrange(len(plain))]
    return [
        whole,
        bytes(flipped),
        whole[: chance.randrange(len(whole))],
        whole + whole,
        framed,
        framed[: chance.randrange(len(framed) + 1)],
        bytes(altered),
        whole + b"behind",
        compress(cut),
        compress(plain + b"x"),
        compress(plain + b"x\0\0\0\0"),
        compress(plain + b"j\0\0\0"),
        compress(plain + b"j\xff\xff\xff\xff"),
        unsized(plain),
        compress(whole),
        plain,
        compress(b"x" + plain),
        compress(b"{}\n"),
        b"",
    ]


def check(folder: Path) -> None:
    """Compare reading at once with reading in pieces, for any bound between and any prefix."""
    chance = random.Random(1)
    path = folder / "segment"
    for _ in range(40):
        for data in segments(chance):
            path.write_bytes(data)
            size_bytes = chance.choice([None, len(data), chance.randrange(len(data) + 1)])
            seen = []
            for bound in (1, len(data) or 1, len(data) + 1, 2**18):
                with mock.patch.object(framing, "SMALL_SEGMENT_MAX_BYTES", bound):
                    reading = Reading(str(path), size_bytes=size_bytes)
                    seen.append((list(reading), reading.whole))
            assert all(one == seen[0] for one in seen), data


def test_what_is_read_at_once_is_what_is_read_in_pieces(tmp_path: Path) -> None:
    """Both ways return the same payloads, positions, problems and digest of the whole."""
    check(tmp_path)


def test_a_segment_that_grows_when_it_is_undone_is_not_undone_at_once(tmp_path: Path) -> None:
    """A segment with a large decompressed size is not read at once: the frame's stated size is checked first."""
    (tmp_path / "bomb").write_bytes(write_segment([("json", bytes(2**24))]))
    with mock.patch.object(zstandard, "ZstdDecompressor", side_effect=AssertionError("undone at once")):
        assert framing._small_segment((tmp_path / "bomb").read_bytes()) is None


def test_a_segment_of_frames_is_a_segment_of_their_payloads(tmp_path: Path) -> None:
    """A segment of frames equals one of payloads; its size is known beforehand, and each frame is plain zstd."""
    compress = zstandard.ZstdCompressor(level=1, write_checksum=True).compress
    for sizes in ([], [1], [3, 70_000, 400_000], [20] * 300):
        payloads = [
            random.Random(size).randbytes(size % 1_000) + bytes(size - size % 1_000) for size in sizes
        ]
        frames = [compress(data) for data in payloads]
        segment = segment_of_frames(zip(sizes, frames, strict=True))
        assert len(segment) == segment_of_frames_bytes([*map(len, frames)]) or not sizes
        assert not sizes or (framing._small_segment(segment) is not None) is (max(sizes) < 2**17)
        (tmp_path / "segment").write_bytes(segment)
        read = [item for item in Reading(str(tmp_path / "segment")) if isinstance(item, Payload)]
        assert [item.data for item in read] == payloads
        assert {item.format for item in read} <= {"protobuf"}
