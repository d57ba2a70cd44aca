"""Vectors of rows while a part is built. Whatever becomes of them, spans and text search go on.

A span has a vector if its attribute holds one, or if the function makes one of its text: input, output and status
message. Where that fails, the span has none, and is counted; building the index anew tries again.
"""

from __future__ import annotations

import binascii
import logging
import time
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake import limits
from tracelake._errors import EmbeddingError, UsageError
from tracelake.search.documents import Column
from tracelake.search.embedder import Embedder, Floats, call, load_for
from tracelake.search.vector_block import BlockWriter, usable
from tracelake.search.vectors import PartVectors, VectorSettings

TEXTS: Final = ("input", "output", "status_message")
"""The columns that tell what a span means."""
logger = logging.getLogger("tracelake.search")


class VectorSource(Protocol):
    """Makes vectors of rows of table `spans`."""

    problem: str | None
    """Why a span has none that should have one: the first time."""

    def vectors(self, batch: pa.RecordBatch) -> dict[int, Floats | None]:
        """Return, by their places, the rows that should have a vector, each with its own or None."""


class PartVectorWriter:
    """Writes the vectors of one part beside its tantivy files, in a `with` block."""

    def __init__(self, directory: Path, settings: VectorSettings) -> None:
        self._settings = settings
        self._source = _source_of(settings)
        self._writer = BlockWriter(directory, settings)
        self._failed = 0

    def __enter__(self) -> PartVectorWriter:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take away what was written on the way."""
        self._writer.close()

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take the vectors of rows; return the rows as the text index is to have them."""
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
                self._source.problem or "a vector has numbers that are none, or is all zeros"
            )
        return batch if self._settings.attribute is None else _without_words(batch, self._settings.attribute)

    def finish(self) -> PartVectors:
        """Write the block, and say what is in it."""
        vectors = self._writer.finish()
        if self._failed:
            logger.warning(
                "%d of %d spans have no vector: %s. They are found by their words all the same; `tracelake index "
                "rebuild` tries again.",
                self._failed,
                self._failed + vectors,
                (self._source.problem or "").rstrip("."),
            )
        return PartVectors(fingerprint=self._settings.fingerprint, vectors=vectors, failed=self._failed)


def _source_of(settings: VectorSettings) -> VectorSource:
    if settings.attribute is not None:
        return AttributeSource(settings.attribute, settings.dimensions)
    try:
        return FunctionSource(load_for(settings))
    except UsageError as error:
        return FunctionSource(None, str(error))


class AttributeSource:
    """Vectors that spans bring along: an array of numbers, or float32, little-endian, as bytes or in base64."""

    def __init__(self, key: str, dimensions: int) -> None:
        self.problem: str | None = None
        self._key = key
        self._dimensions = dimensions

    def vectors(self, batch: pa.RecordBatch) -> dict[int, Floats | None]:
        """See VectorSource."""
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
    """Return the vector that the text of an attribute holds, None where it holds none."""
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
    """Vectors by a function of the user."""

    def __init__(self, function: Embedder | None, problem: str | None = None) -> None:
        self.problem = problem
        self._function = function
        self._failures = 0
        self._failed_s = 0.0

    def vectors(self, batch: pa.RecordBatch) -> dict[int, Floats | None]:
        """See VectorSource."""
        texts = meant_texts(batch)
        different = list(dict.fromkeys(texts.values()))
        vectors: dict[str, Floats] = {}
        for start in range(0, len(different), limits.EMBEDDING_BATCH_TEXTS):
            vectors |= self._made(different[start : start + limits.EMBEDDING_BATCH_TEXTS])
        return {row: vectors.get(text) for row, text in texts.items()}

    def _made(self, texts: Sequence[str]) -> dict[str, Floats]:
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
        return self._made(texts[:half]) | self._made(texts[half:])

    @property
    def _has_failed_enough(self) -> bool:
        return (
            self._failures >= limits.EMBEDDING_FAILURES_MAX or self._failed_s >= limits.EMBEDDING_FAILED_MAX_S
        )


def meant_texts(batch: pa.RecordBatch) -> dict[int, str]:
    """Return the texts that vectors are made of, by the places of their rows; spans that say nothing have none."""
    columns = [batch.column(name).to_pylist() for name in TEXTS]
    texts = ("\n".join(filter(None, told)) for told in zip(*columns, strict=True))
    return {row: text[: limits.EMBEDDED_TEXT_MAX_CHARS] for row, text in enumerate(texts) if text.strip()}


def _without_words(batch: pa.RecordBatch, key: str) -> pa.RecordBatch:
    """Return rows with an empty text for this attribute: its numbers are no words that anybody looks for."""
    place = batch.schema.get_field_index("attributes")
    attributes: Column = batch.column(place)
    items: Column = pc.if_else(pc.equal(attributes.keys, pa.scalar(key)), "", attributes.items)
    from_arrays: Any = pa.MapArray.from_arrays
    emptied = from_arrays(attributes.offsets, attributes.keys, items, attributes.type)
    return batch.set_column(place, batch.schema.field(place), emptied)
