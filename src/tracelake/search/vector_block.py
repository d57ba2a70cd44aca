"""The vectors of one part as one file of its pack, for searches that map it into memory.

    magic "TLVECT01" | header length, 4 bytes little-endian | header, JSON | arrays, each at a multiple of 64 bytes

| array | each | what |
|---|---|---|
| rows | int64 | the id of the row in table `spans` |
| norms | float32 | the length of the vector; 1 where the metric is cosine |
| scales, errors | float32 | what a code is worth, and how far code and vector are apart at most |
| codes | int8 × dimensions | the vector of length 1, coarsely: the first look, at a third of the bytes |
| exact | float16 × dimensions | the vector of length 1: what scores are of |

Rows are told by their ids, not by the order of documents, so the marks of replaced rows and filters of the text
index hold for vectors, too.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracelake._errors import DamageError
from tracelake.formats import decoder
from tracelake.limits import VECTORS_AT_ONCE
from tracelake.search.embedder import Floats
from tracelake.search.live import RowIds
from tracelake.search.model import BUILD_ANEW, PartRef
from tracelake.search.vectors import VectorSettings

FILE: Final = "vectors.block"
_MAGIC: Final = b"TLVECT01"
_LENGTH: Final = struct.Struct("<I")

AnyArray: TypeAlias = npt.NDArray[Any]


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format_version: Literal[1] = 1
    settings: VectorSettings
    vectors: int


def _layout(dimensions: int, vectors: int) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    for name, kind in (("rows", "<i8"), ("norms", "<f4"), ("scales", "<f4"), ("errors", "<f4")):
        yield name, np.dtype(kind), (vectors,)
    yield "codes", np.dtype("i1"), (vectors, dimensions)
    yield "exact", np.dtype("<f2"), (vectors, dimensions)


def usable(vectors: Floats) -> npt.NDArray[np.bool_]:
    """Return which rows are vectors: of numbers, and not of length 0 or beyond all numbers."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    usable_ones: npt.NDArray[np.bool_] = (
        np.isfinite(lengths) & (lengths > 0) & (lengths < np.finfo(np.float32).max)
    )
    return usable_ones


class BlockWriter:
    """Writes a block into a directory; what it holds in memory is 20 bytes a vector."""

    def __init__(self, directory: Path, settings: VectorSettings) -> None:
        self._directory = directory
        self._settings = settings
        self._small: list[tuple[AnyArray, ...]] = []
        self._codes, self._exact = (
            (directory / f"vectors.{name}").open("w+b") for name in ("codes", "exact")
        )

    def add(self, rows: RowIds, vectors: Floats) -> None:
        """Take vectors that are `usable`, each with the id of its row."""
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
        exact = (vectors / norms[:, None]).astype("<f2")
        unit = exact.astype(np.float32)
        scales = (np.abs(unit).max(axis=1, initial=0) / np.iinfo(np.int8).max).astype("<f4")
        codes = np.rint(unit / scales[:, None]).astype("i1")
        # More than sums of float32 differ by, of vectors of length 1.
        slack = 1e-4
        errors = np.linalg.norm(unit - codes * scales[:, None], axis=1) + slack
        if self._settings.metric == "cosine":
            norms = np.ones_like(norms)
        self._small.append((rows.astype("<i8"), norms.astype("<f4"), scales, errors.astype("<f4")))
        self._codes.write(codes.tobytes())
        self._exact.write(exact.tobytes())

    def join(self, block: VectorBlock, places: npt.NDArray[np.int64]) -> None:
        """Take some vectors of another block of the same settings as they are."""
        self._small.append(
            (block.rows[places], block.norms[places], block.scales[places], block.errors[places])
        )
        for start in range(0, len(places), VECTORS_AT_ONCE):
            some = places[start : start + VECTORS_AT_ONCE]
            self._codes.write(block.codes[some].tobytes())
            self._exact.write(block.exact[some].tobytes())

    def finish(self) -> int:
        """Write the block, and return how many vectors are in it."""
        vectors = sum(len(small[0]) for small in self._small)
        header = msgspec.json.encode(_Header(settings=self._settings, vectors=vectors))
        large = {"codes": self._codes, "exact": self._exact}
        with (self._directory / FILE).open("wb") as file:
            file.write(_MAGIC + _LENGTH.pack(len(header)) + header)
            for at, (name, kind, _) in enumerate(_layout(self._settings.dimensions, vectors)):
                file.write(bytes(-file.tell() % 64))
                if name in large:
                    _append(file, large[name])
                else:
                    columns = [small[at] for small in self._small]
                    file.write(np.concatenate([np.array([], kind), *columns]).astype(kind).tobytes())
        return vectors

    def close(self) -> None:
        """Take away what was written on the way."""
        for file in (self._codes, self._exact):
            file.close()
            Path(file.name).unlink(missing_ok=True)


def _append(file: BinaryIO, other: BinaryIO) -> None:
    other.seek(0)
    shutil.copyfileobj(other, file)


@dataclass(frozen=True, slots=True)
class VectorBlock:
    """The vectors of one part, mapped into memory; it stays so whatever becomes of the file."""

    settings: VectorSettings
    rows: RowIds
    norms: Floats
    scales: Floats
    errors: Floats
    codes: npt.NDArray[np.int8]
    exact: npt.NDArray[np.float16]


def read_block(path: Path, part: str) -> VectorBlock:
    """Map the block of a part. Raises DamageError, naming the part, where it is missing or is not whole; OSError."""
    try:
        # numpy's own maps keep their files open, and a process has more maps than files.
        with pa.memory_map(str(path)) as file:
            mapped = np.frombuffer(memoryview(file.read_buffer()), np.uint8)
    except FileNotFoundError as error:
        raise DamageError(
            f"index part {part} has no vectors, and its manifest says that it has; {BUILD_ANEW}"
        ) from error
    try:
        start = len(_MAGIC) + _LENGTH.size
        if mapped[: len(_MAGIC)].tobytes() != _MAGIC:
            raise ValueError("it does not begin as one")
        place = start + _LENGTH.unpack(mapped[len(_MAGIC) : start].tobytes())[0]
        header = decoder(_Header).decode(mapped[start:place].tobytes())
        arrays: dict[str, AnyArray] = {}
        for name, kind, shape in _layout(header.settings.dimensions, header.vectors):
            place += -place % 64
            end = place + kind.itemsize * int(np.prod(shape))
            if end > len(mapped):
                raise ValueError(f"it ends in its {name}")
            arrays[name] = mapped[place:end].view(kind).reshape(shape)
            place = end
        if place != len(mapped):
            raise ValueError("something follows it")
    except (ValueError, struct.error, msgspec.MsgspecError) as error:
        raise DamageError(
            f"the vectors of index part {part} cannot be read: {error}; {BUILD_ANEW}"
        ) from error
    return VectorBlock(header.settings, **arrays)


def check_block(block: VectorBlock, part: PartRef, settings: VectorSettings | None = None) -> None:
    """Raise DamageError where a block is not the one that a manifest says the part has."""
    known = part.vectors
    told = (block.settings.fingerprint, len(block.rows))
    if known is None or told != (known.fingerprint, known.vectors) or settings not in (None, block.settings):
        raise DamageError(
            f"the vectors of index part {part.path} are not those that its manifest names; {BUILD_ANEW}"
        )
