"""Functions that make vectors of words: good ones, and ones that fail in every way."""

from __future__ import annotations

import itertools
import re
import time
import zlib
from typing import Any

import numpy as np

from tracelake import embedder

DIMENSIONS = 32
HERE = "tests.search.embedders"
COUNT = itertools.count()


def bag(text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a vector of a text: each word adds to one component."""
    vector = np.zeros(DIMENSIONS, np.float32)
    for word in re.findall(r"\w+", text.lower()):
        digest = zlib.crc32(word.encode())
        vector[digest % DIMENSIONS] += 1 if digest & 1024 else -1
    return vector


@embedder(dimensions=DIMENSIONS, version="1")
def bag_of_words(texts: list[str]) -> Any:
    """Return an array."""
    return np.stack([bag(text) for text in texts])


@embedder(dimensions=DIMENSIONS, metric="dot")
def by_dot(texts: list[str]) -> Any:
    """Return lists of long vectors."""
    return [(1000 * bag(text)).tolist() for text in texts]


@embedder(dimensions=DIMENSIONS, version="1")
def never_the_same(texts: list[str]) -> Any:
    """Return other floats each time, as some models do."""
    rng = np.random.default_rng(next(COUNT))
    return np.stack([bag(text) + 1e-3 * rng.standard_normal(DIMENSIONS) for text in texts])


@embedder(dimensions=DIMENSIONS)
def not_of_poison(texts: list[str]) -> Any:
    """Fail on texts that contain a poison word."""
    next(COUNT)
    if any("poison" in text for text in texts):
        raise RuntimeError("it is poisoned")
    return np.stack([bag(text) for text in texts])


@embedder(dimensions=DIMENSIONS)
def broken(texts: list[str]) -> Any:
    """Fail always."""
    next(COUNT)
    raise SystemExit(f"no model for {len(texts)} texts")


@embedder(dimensions=DIMENSIONS)
def hanging(texts: list[str]) -> Any:
    """Hang for longer than any test waits."""
    next(COUNT)
    time.sleep(300)
    return texts


@embedder(dimensions=DIMENSIONS)
def of_other_shape(texts: list[str]) -> Any:
    """Return too few numbers."""
    return np.ones((len(texts), DIMENSIONS - 1))


@embedder(dimensions=DIMENSIONS)
def of_words(texts: list[str]) -> Any:
    """Return values that are not numbers."""
    return [["a"] * DIMENSIONS for _ in texts]


@embedder(dimensions=DIMENSIONS)
def sometimes_nan(texts: list[str]) -> Any:
    """Return NaNs and zeros."""
    vectors = np.stack([bag(text) for text in texts])
    for row, text in enumerate(texts):
        if "nan" in text:
            vectors[row, 3] = np.nan
        if "infinite" in text:
            vectors[row, 3] = np.inf
        if "zero" in text:
            vectors[row] = 0
    return vectors


def undeclared(texts: list[str]) -> Any:
    """Fail if called: the function is not declared."""
    raise AssertionError(texts)
