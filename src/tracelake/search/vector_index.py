"""Vector blocks: the vectors of one part as one file of its pack, which searches memory-map.

    magic "TLVECT01" | header length, 4 bytes little-endian | header, JSON | arrays, each at a multiple of 64 bytes

| array | type | content |
|---|---|---|
| rows | int64 | the id of the row in table `spans` |
| norms | float32 | the length of the vector; 1 if the metric is cosine |
| scales, errors | float32 | the scale of the code, and the maximum distance between code and vector |
| codes | int8 × dimensions | the vector of length 1, quantized: for the first pass, at a third of the bytes |
| exact | float16 × dimensions | the vector of length 1, used for scores |

Rows are identified by id, not by document order. Deletes of replaced rows and filters of the text index therefore also
apply to vectors.

Nearest-neighbour search is exact. A first pass over the codes bounds each score. The error of a product with the
query is at most the distance between code and vector, times the length of the query. A vector whose upper bound is
below the k-th highest lower bound cannot be among the k nearest. All others are compared exactly, so codes only save
work.

A span has a vector if its attribute holds one, or if the function makes one from its text: input, output and status
message. A failure leaves the span without a vector and is counted, but indexing and text search continue. A rebuild
of the index tries again.
"""

from __future__ import annotations

import binascii
import logging
import shutil
import struct
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake import limits
from tracelake._errors import DamageError, EmbeddingError, UsageError
from tracelake.formats import decoder
from tracelake.search.documents import Column
from tracelake.search.model import BUILD_ANEW, NOBODY, PartRef, RowIds
from tracelake.search.vectors import Embedder, Floats, PartVectors, VectorSettings, call, load_embedder

_EMBEDDING_BATCH_TEXTS: Final = 128
"""Texts in one call of the user's embedding function."""
EMBEDDING_FAILURES_MAX: Final = 20
"""Failed embedding calls while one part is built."""
EMBEDDING_FAILED_MAX_S: Final = 60.0
"""Total time of failed embedding calls while one part is built."""
_VECTORS_AT_ONCE: Final = 1_024
"""Vectors compared or copied at a time; they fit into the processor's cache."""

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
    """Return for each row whether it is a valid vector: finite, and with a length that is neither 0 nor out of
    range."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    usable_ones: npt.NDArray[np.bool_] = (
        np.isfinite(lengths) & (lengths > 0) & (lengths < np.finfo(np.float32).max)
    )
    return usable_ones


class BlockWriter:
    """Writer of a block into a directory. It needs 20 bytes of memory per vector."""

    def __init__(self, directory: Path, settings: VectorSettings) -> None:
        self._directory = directory
        self._settings = settings
        self._small: list[tuple[AnyArray, ...]] = []
        self._codes, self._exact = (
            (directory / f"vectors.{name}").open("w+b") for name in ("codes", "exact")
        )

    def add(self, rows: RowIds, vectors: Floats) -> None:
        """Add vectors that are `usable`, with the ids of their rows."""
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
        exact = (vectors / norms[:, None]).astype("<f2")
        unit = exact.astype(np.float32)
        scales = (np.abs(unit).max(axis=1, initial=0) / np.iinfo(np.int8).max).astype("<f4")
        codes = np.rint(unit / scales[:, None]).astype("i1")
        # More than the rounding error of float32 sums for vectors of length 1.
        slack = 1e-4
        errors = np.linalg.norm(unit - codes * scales[:, None], axis=1) + slack
        if self._settings.metric == "cosine":
            norms = np.ones_like(norms)
        self._small.append((rows.astype("<i8"), norms.astype("<f4"), scales, errors.astype("<f4")))
        self._codes.write(codes.tobytes())
        self._exact.write(exact.tobytes())

    def join(self, block: VectorBlock, places: npt.NDArray[np.int64]) -> None:
        """Copy some vectors from another block of the same settings."""
        self._small.append(
            (block.rows[places], block.norms[places], block.scales[places], block.errors[places])
        )
        for start in range(0, len(places), _VECTORS_AT_ONCE):
            some = places[start : start + _VECTORS_AT_ONCE]
            self._codes.write(block.codes[some].tobytes())
            self._exact.write(block.exact[some].tobytes())

    def finish(self) -> int:
        """Write the block; return its number of vectors."""
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
        """Delete the temporary files."""
        for file in (self._codes, self._exact):
            file.close()
            Path(file.name).unlink(missing_ok=True)


def _append(file: BinaryIO, other: BinaryIO) -> None:
    other.seek(0)
    shutil.copyfileobj(other, file)


@dataclass(frozen=True, slots=True)
class VectorBlock:
    """Memory-mapped vectors of one part. The mapping remains valid if the file is deleted."""

    settings: VectorSettings
    rows: RowIds
    norms: Floats
    scales: Floats
    errors: Floats
    codes: npt.NDArray[np.int8]
    exact: npt.NDArray[np.float16]


def read_block(path: Path, part: str) -> VectorBlock:
    """Map the block of a part. Raises OSError, or DamageError with the part's name if the block is missing or
    incomplete."""
    try:
        # numpy's maps keep their files open, and a process may have fewer open files than maps.
        with pa.memory_map(str(path)) as file:
            mapped = np.frombuffer(memoryview(file.read_buffer()), np.uint8)
    except FileNotFoundError as error:
        raise DamageError(
            f"index part {part} has no vectors, although its manifest lists them; {BUILD_ANEW}"
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
    """Raise DamageError if a block is not the one that the manifest describes for the part."""
    described = part.vectors
    actual = (block.settings.fingerprint, len(block.rows))
    if (
        described is None
        or actual != (described.fingerprint, described.vectors)
        or settings not in (None, block.settings)
    ):
        raise DamageError(f"the vectors of index part {part.path} do not match its manifest; {BUILD_ANEW}")


Doubles: TypeAlias = npt.NDArray[np.float64]
Places: TypeAlias = npt.NDArray[np.int64]


def nearest(
    blocks: Sequence[VectorBlock],
    query: Doubles,
    most: int,
    allowed: RowIds | None = None,
    excluded: RowIds = NOBODY,
) -> tuple[RowIds, Doubles]:
    """Return the ids of the `most` rows with the nearest vectors, best first, and their scores.

    Rows with equal scores are ordered by id. `allowed` restricts the search to these rows; `excluded` excludes rows.
    Both are sorted.
    """
    places = [_positions(block.rows, allowed, excluded) for block in blocks]
    bounds = [_bounds(block, query, positions) for block, positions in zip(blocks, places, strict=True)]
    if not bounds or most < 1:
        return NOBODY, np.array([], np.float64)
    lowest = np.concatenate([middle - error for middle, error in bounds])
    if not len(lowest):
        return NOBODY, np.array([], np.float64)
    rank = min(most, len(lowest))
    least = np.partition(lowest, len(lowest) - rank)[len(lowest) - rank]
    rows, scores = [], []
    for block, positions, (middle, error) in zip(blocks, places, bounds, strict=True):
        candidates = np.flatnonzero(middle + error >= least)
        chosen = candidates if positions is None else positions[candidates]
        rows.append(block.rows[chosen])
        scores.append(_scores(block, query, chosen))
    all_rows, all_scores = np.concatenate(rows), np.concatenate(scores)
    order = np.lexsort((all_rows, -all_scores))[:most]
    return all_rows[order], all_scores[order]


def vector_of(blocks: Sequence[VectorBlock], row: int) -> Doubles | None:
    """Return the vector of a row; None if it has none."""
    for block in blocks:
        places = np.flatnonzero(block.rows == row)
        if len(places):
            return np.asarray(block.exact[places[0]], np.float64) * float(block.norms[places[0]])
    return None


def _bounds(block: VectorBlock, query: Doubles, positions: Places | None) -> tuple[Doubles, Doubles]:
    """Return an estimate of each score for a query of length 1, and its maximum error."""
    if positions is not None and 2 * len(positions) > len(block.rows):
        # Reading all rows sequentially is faster than picking most of them.
        middle, error = _bounds(block, query, None)
        return middle[positions], error[positions]
    number = len(block.rows) if positions is None else len(positions)
    # At other lengths, products may overflow float32.
    narrow = (query / np.linalg.norm(query)).astype(np.float32)
    products = np.empty(number, np.float32)
    chunk = np.empty((min(_VECTORS_AT_ONCE, number), len(query)), np.float32)
    for start in range(0, number, _VECTORS_AT_ONCE):
        stop = min(start + _VECTORS_AT_ONCE, number)
        chunk[: stop - start] = (
            block.codes[start:stop] if positions is None else block.codes[positions[start:stop]]
        )
        np.dot(chunk[: stop - start], narrow, out=products[start:stop])
    which = slice(None) if positions is None else positions
    norms = block.norms[which].astype(np.float64)
    return products * block.scales[which] * norms, block.errors[which] * norms


def _scores(block: VectorBlock, query: Doubles, places: Places) -> Doubles:
    length = float(np.linalg.norm(query))
    scores = np.empty(len(places), np.float64)
    for start in range(0, len(places), _VECTORS_AT_ONCE):
        some = places[start : start + _VECTORS_AT_ONCE]
        scores[start : start + _VECTORS_AT_ONCE] = block.exact[some].astype(np.float64) @ (query / length)
    # Rounded, so that equal vectors have equal scores at any position.
    return np.round(scores, 9) * length * block.norms[places]


def _positions(rows: RowIds, allowed: RowIds | None, excluded: RowIds) -> Places | None:
    """Return the positions of the rows to compare; None for all."""
    if allowed is None and not len(excluded):
        return None
    mask = np.ones(len(rows), bool) if allowed is None else _among(rows, allowed)
    return np.flatnonzero(mask & ~_among(rows, excluded))


def _among(rows: RowIds, allowed: RowIds) -> npt.NDArray[np.bool_]:
    """Return which rows are in a sorted array."""
    if not len(allowed):
        return np.zeros(len(rows), bool)
    places = np.minimum(np.searchsorted(allowed, rows), len(allowed) - 1)
    among: npt.NDArray[np.bool_] = allowed[places] == rows
    return among


TEXTS: Final = ("input", "output", "status_message")
"""The columns from which a span's vector is made."""
logger = logging.getLogger("tracelake.search")


class PartVectorWriter:
    """Context manager that writes the vectors of one part next to its tantivy files."""

    def __init__(self, directory: Path, settings: VectorSettings) -> None:
        self._settings = settings
        self._source = _source_of(settings)
        self._writer = BlockWriter(directory, settings)
        self._failed = 0

    def __enter__(self) -> PartVectorWriter:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete the temporary files."""
        self._writer.close()

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the vectors of rows; return the rows in the form that the text index needs."""
        wanted = self._source.vectors(batch)
        with_one = {row: vector for row, vector in wanted.items() if vector is not None}
        vectors = np.array(list(with_one.values()), np.float32).reshape(
            len(with_one), self._settings.dimensions
        )
        right = usable(vectors)
        ids = batch.column("_row_id").to_numpy(zero_copy_only=False)[list(with_one)]
        self._writer.add(ids[right].astype(np.int64), vectors[right])
        self._failed += len(wanted) - int(right.sum())
        if not right.all():
            self._source.problem = (
                self._source.problem or "a vector contains NaN or infinity, or is all zeros"
            )
        return batch if self._settings.attribute is None else _without_words(batch, self._settings.attribute)

    def finish(self) -> PartVectors:
        """Write the block; return its description."""
        vectors = self._writer.finish()
        if self._failed:
            logger.warning(
                "%d of %d spans have no vector: %s. Searches by words still find them; `tracelake index "
                "rebuild` tries again.",
                self._failed,
                self._failed + vectors,
                (self._source.problem or "").rstrip("."),
            )
        return PartVectors(fingerprint=self._settings.fingerprint, vectors=vectors, failed=self._failed)


def _source_of(settings: VectorSettings) -> AttributeSource | FunctionSource:
    if settings.attribute is not None:
        return AttributeSource(settings.attribute, settings.dimensions)
    try:
        return FunctionSource(load_embedder(settings))
    except UsageError as error:
        return FunctionSource(None, str(error))


class AttributeSource:
    """Vectors in span attributes: an array of numbers, or float32, little-endian, as bytes or in base64."""

    def __init__(self, key: str, dimensions: int) -> None:
        self.problem: str | None = None
        """The first reason why a span lacks a vector that it should have."""
        self._key = key
        self._dimensions = dimensions

    def vectors(self, batch: pa.RecordBatch) -> dict[int, Floats | None]:
        """Return vectors by row position in the batch. A row that should have a vector but failed has None; other rows
        are absent."""
        values = pc.map_lookup(batch.column("attributes"), self._key, "first").to_pylist()
        return {row: self._vector(value) for row, value in enumerate(values) if value}

    def _vector(self, value: str) -> Floats | None:
        vector = vector_in(value)
        if vector is None or len(vector) != self._dimensions:
            what = "is no vector" if vector is None else f"has {len(vector)} numbers, not {self._dimensions}"
            self.problem = self.problem or f"attribute {self._key} {what}"
            return None
        return vector


def vector_in(value: str) -> Floats | None:
    """Parse the vector in the text of an attribute; return None if it is no vector."""
    with suppress(ValueError, binascii.Error, msgspec.MsgspecError, OverflowError, RecursionError):
        if value.startswith("["):
            numbers = msgspec.json.decode(value)
            if not all(type(number) in (int, float) for number in numbers):
                return None
            with np.errstate(over="ignore"):
                return np.array(numbers, np.float32)
        return np.frombuffer(b64decode(value, validate=True), "<f4").astype(np.float32)
    return None


class FunctionSource:
    """Vectors from an embedding function of the user."""

    def __init__(self, function: Embedder | None, problem: str | None = None) -> None:
        self.problem = problem
        self._function = function
        self._failures = 0
        self._failed_s = 0.0

    def vectors(self, batch: pa.RecordBatch) -> dict[int, Floats | None]:
        """Return the vectors of a batch (see AttributeSource)."""
        texts = meant_texts(batch)
        different = list(dict.fromkeys(texts.values()))
        vectors: dict[str, Floats] = {}
        for start in range(0, len(different), _EMBEDDING_BATCH_TEXTS):
            vectors |= self._embed(different[start : start + _EMBEDDING_BATCH_TEXTS])
        return {row: vectors.get(text) for row, text in texts.items()}

    def _embed(self, texts: Sequence[str]) -> dict[str, Floats]:
        """Return the vectors of those texts on which the function does not fail."""
        if self._function is None or self._has_failed_enough:
            return {}
        begun_s = time.monotonic()
        try:
            return dict(zip(texts, call(self._function, texts), strict=True))
        except EmbeddingError as error:
            self._failures += 1
            self._failed_s += time.monotonic() - begun_s
            self.problem = self.problem or str(error)
        if len(texts) == 1:
            return {}
        half = len(texts) // 2
        return self._embed(texts[:half]) | self._embed(texts[half:])

    @property
    def _has_failed_enough(self) -> bool:
        return self._failures >= EMBEDDING_FAILURES_MAX or self._failed_s >= EMBEDDING_FAILED_MAX_S


def meant_texts(batch: pa.RecordBatch) -> dict[int, str]:
    """Return the texts to embed, by row position: input, output and status message. Spans without text are omitted."""
    columns = [batch.column(name).to_pylist() for name in TEXTS]
    texts = ("\n".join(filter(None, values)) for values in zip(*columns, strict=True))
    return {row: text[: limits.EMBEDDED_TEXT_MAX_CHARS] for row, text in enumerate(texts) if text.strip()}


def _without_words(batch: pa.RecordBatch, key: str) -> pa.RecordBatch:
    """Return rows with an empty text for this attribute, because no user searches its numbers as words."""
    place = batch.schema.get_field_index("attributes")
    attributes: Column = batch.column(place)
    items: Column = pc.if_else(pc.equal(attributes.keys, pa.scalar(key)), "", attributes.items)
    from_arrays: Any = pa.MapArray.from_arrays
    emptied = from_arrays(attributes.offsets, attributes.keys, items, attributes.type)
    return batch.set_column(place, batch.schema.field(place), emptied)
