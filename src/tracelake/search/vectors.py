"""Vectors beside the text: where they come from, and what a part says of its own.

Settings belong to an index and stand in its manifest. A part has vectors of one settings, or none; a search compares
with vectors of the manifest's settings alone, so vectors of two are never mixed (F12).

Functions of users that make vectors of texts: declared by them, found by name, called with care.
"""

from __future__ import annotations

import hashlib
import json
import pkgutil
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tracelake._errors import EmbeddingError, UsageError
from tracelake.limits import (
    EMBEDDING_CALL_MAX_S,
    PROBLEM_MAX_CHARS,
    VECTOR_DIMENSIONS_MAX,
    VECTOR_NAME_MAX_CHARS,
    VECTOR_PART_MAX_BYTES,
)

Metric: TypeAlias = Literal["cosine", "dot"]
ATTRIBUTE: Final = "attributes."
"""What sources begin with that are attributes of spans; all others are functions, `module:function`."""
HOW: Final = "`tracelake index rebuild --vectors module:function`"
"""How a lake gets vectors."""

_FORMAT: Final = 1
_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


class VectorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the vectors of an index come from, and how they are compared."""

    source: str
    """`attributes.` and the key of an attribute that holds them, or the function of the user, `module:function`."""
    dimensions: int
    metric: Metric = "cosine"
    version: str = ""
    """What the user says of the function or its model: where it changes, vectors do not fit those of before."""

    def __post_init__(self) -> None:
        """Refuse what cannot be, when written and when read. Raises ValueError."""
        if not 1 <= self.dimensions <= VECTOR_DIMENSIONS_MAX:
            raise ValueError(f"dimensions must be from 1 to {VECTOR_DIMENSIONS_MAX:,}, not {self.dimensions}")
        if max(len(self.source), len(self.version)) > VECTOR_NAME_MAX_CHARS:
            raise ValueError(f"source and version have at most {VECTOR_NAME_MAX_CHARS} characters each")
        if not (self.attribute or _FUNCTION.fullmatch(self.source)):
            raise ValueError(
                f"{self.source!r} is neither module:function nor an attribute such as attributes.embedding"
            )

    @property
    def attribute(self) -> str | None:
        """The key of the attribute; None where a function makes them."""
        return self.source.removeprefix(ATTRIBUTE) if self.source.startswith(ATTRIBUTE) else None

    @property
    def fingerprint(self) -> str:
        """What vectors must agree on to be compared."""
        told = [_FORMAT, self.source, self.dimensions, self.metric, self.version]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    @property
    def rows_per_part(self) -> int:
        """How many rows a part has at most, so that a task can hold it."""
        return max(1, VECTOR_PART_MAX_BYTES // (3 * self.dimensions))

    def __str__(self) -> str:
        """Return it for people."""
        version = f", version {self.version}" if self.version else ""
        return f"{self.source} ({self.dimensions} dimensions, {self.metric}{version})"


def checked_settings(source: str, dimensions: int, metric: str, version: str = "") -> VectorSettings:
    """Return settings of what a user gave. Raises UsageError."""
    known: Metric = "dot" if metric == "dot" else "cosine"
    if metric != known:
        raise UsageError(f"the metric must be cosine or dot, not {metric!r}.")
    try:
        return VectorSettings(source=source, dimensions=dimensions, metric=known, version=version)
    except (TypeError, ValueError) as error:
        raise UsageError(f"these vectors cannot be: {error}.") from error


def has_vectors(known: PartVectors | None, wanted: VectorSettings | None) -> bool:
    """Whether a part has the vectors that are wanted, if any are; it may have failed to make some of them."""
    return wanted is None or (known is not None and known.fingerprint == wanted.fingerprint)


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an index is built with: how texts become words, and which vectors it has."""

    text: str = "english"
    """The name of the analyzer."""
    vectors: VectorSettings | None = None


PLAIN: Final = IndexSettings()
"""What an index is built with where nobody says anything."""


class PartVectors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a part says of its vectors."""

    fingerprint: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    vectors: Annotated[int, msgspec.Meta(ge=0)]
    failed: Annotated[int, msgspec.Meta(ge=0)]
    """Spans that should have one, and have none: the function failed, or the attribute holds no vector."""


NO_SOURCE: Final = "none"
"""What users say who want no vectors."""
Floats: TypeAlias = npt.NDArray[np.float32]
EmbeddingFunction: TypeAlias = Callable[[list[str]], Any]


@dataclass(frozen=True, slots=True)
class Embedder:
    """A function that makes vectors of texts, with what must be known of these. Calling it calls the function."""

    function: EmbeddingFunction
    dimensions: int
    metric: Metric
    version: str

    def __call__(self, texts: list[str]) -> Any:
        """Return what the function returns."""
        return self.function(texts)


def embedder(
    *, dimensions: int, metric: Metric = "cosine", version: str = ""
) -> Callable[[EmbeddingFunction], Embedder]:
    """Declare that a function makes vectors: of a list of n texts, n rows of `dimensions` numbers.

    Several threads and processes may call it at once. Lakes name it as `module:function`, so it stands in a module that
    can be imported wherever tasks and searches run.

    Args:
        dimensions: numbers of each vector.
        metric: how two are compared, `cosine` or `dot`.
        version: of its model, say. Where it changes, the vectors of a lake have to be built anew.
    """

    def declared(function: EmbeddingFunction) -> Embedder:
        checked_settings("module:function", dimensions, metric, version)
        return Embedder(function, dimensions, metric, version)

    return declared


def load(source: str) -> tuple[Embedder, VectorSettings]:
    """Import a function by its name, `module:function`, and return it with the settings that it makes vectors of.

    Only what is declared as an embedder is ever called: a name in a lake is no reason to run anything else.

    Raises:
        UsageError: there is no such function here, or it is not declared.
    """
    checked_settings(source, 1, "cosine")  # a name of this form, before anything is imported
    try:
        loaded = pkgutil.resolve_name(source)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the module does when it is imported, sys.exit too
        raise UsageError(
            f"the function {source}, which makes the vectors, cannot be imported here: {_told(error)}. Install its "
            "module where searches and tasks run, or name its folder in PYTHONPATH."
        ) from error
    if not isinstance(loaded, Embedder):
        raise UsageError(
            f"{source} is not declared to make vectors; put @tracelake.embedder(dimensions=…) above it."
        )
    return loaded, checked_settings(source, loaded.dimensions, loaded.metric, loaded.version)


def load_embedder(settings: VectorSettings) -> Embedder:
    """Return the function that these vectors come from. Raises UsageError where it makes others now."""
    function, now = load(settings.source)
    if now != settings:
        raise UsageError(
            f"the vectors of the index are by {settings}, and here it is {now}: they do not compare. Build them anew "
            f"with `tracelake index rebuild --vectors {settings.source}`, or use the function of before."
        )
    return function


def call(function: Embedder, texts: Sequence[str]) -> Floats:
    """Return the vectors of texts, one a row; what is no number in them is for the caller to see.

    Raises:
        EmbeddingError: The function failed, took too long, or returned something else.
    """
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(np.asarray(function(list(texts)), np.float32))
        except BaseException as error:  # noqa: BLE001  of the user: none of ours is raised in there
            failure.append(error)

    # A thread of its own, which nobody waits for that hangs.
    thread = threading.Thread(target=run, name="tracelake-embedding", daemon=True)
    thread.start()
    thread.join(EMBEDDING_CALL_MAX_S)
    if not outcome and not failure:
        raise EmbeddingError(
            f"the function that makes vectors did not answer within {EMBEDDING_CALL_MAX_S:g} s, "
            f"asked for {len(texts)} texts."
        )
    if failure:
        raise EmbeddingError(f"the function that makes vectors failed: {_told(failure[0])}.") from failure[0]
    shape = (len(texts), function.dimensions)
    if outcome[0].shape != shape:
        raise EmbeddingError(
            f"the function that makes vectors returned the shape {outcome[0].shape} for {shape[0]} texts, "
            f"not {shape}."
        )
    vectors: Floats = outcome[0]
    return vectors


def requested_vectors(source: str, dimensions: int | None, metric: str | None) -> VectorSettings | None:
    """Return the settings that a user asks for: of an attribute, or as a function is declared; None for `none`.

    Raises UsageError for what cannot be.
    """
    if source == NO_SOURCE:
        return None
    if source.startswith(ATTRIBUTE):
        if dimensions is None:
            raise UsageError(f"say how many numbers a vector in {source} has, with dimensions.")
        return checked_settings(source, dimensions, metric or "cosine")
    if dimensions is not None or metric is not None:
        raise UsageError(
            f"{source} says its dimensions and metric itself, with @tracelake.embedder; leave them out, or name an "
            f"attribute. Example: {HOW}"
        )
    return load(source)[1]


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:PROBLEM_MAX_CHARS].rstrip(". ")
