"""Vector settings, and embedding functions of users.

An index has one vector setting, stored in its manifest. A part has vectors of one setting or none. A search only
compares with vectors of the manifest's setting, so vectors of different settings are never mixed (F12).

A user declares an embedding function, a lake names it, and calls to it are isolated: with a timeout, and any
exception becomes an EmbeddingError.
"""

from __future__ import annotations

import hashlib
import json
import pkgutil
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec

from tracelake import limits
from tracelake._errors import EmbeddingError, UsageError
from tracelake.limits.input import MIB

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_VECTOR_PART_MAX_BYTES: Final = 128 * MIB
"""Vectors of one part in an index rebuild."""

Metric: TypeAlias = Literal["cosine", "dot"]
ATTRIBUTE: Final = "attributes."
"""Prefix of sources that are span attributes. All other sources are functions, `module:function`."""
HOW: Final = "`tracelake index rebuild --vectors module:function`"
"""Command that adds vectors to a lake."""

_FORMAT: Final = 1
_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


class VectorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Source of an index's vectors, and the metric that compares them."""

    source: str
    """`attributes.` and the key of an attribute with vectors, or the user's function, `module:function`."""
    dimensions: int
    metric: Metric = "cosine"
    version: str = ""
    """Version of the function or its model, chosen by the user. Vectors of different versions are incompatible."""

    def __post_init__(self) -> None:
        """Reject invalid settings, on writing and on reading. Raises ValueError if they contradict one another."""
        if not 1 <= self.dimensions <= limits.VECTOR_DIMENSIONS_MAX:
            raise ValueError(
                f"dimensions must be from 1 to {limits.VECTOR_DIMENSIONS_MAX:,}, not {self.dimensions}"
            )
        if max(len(self.source), len(self.version)) > limits.VECTOR_NAME_MAX_CHARS:
            raise ValueError(
                f"source and version have at most {limits.VECTOR_NAME_MAX_CHARS} characters each"
            )
        if not (self.attribute or _FUNCTION.fullmatch(self.source)):
            raise ValueError(
                f"{self.source!r} is neither module:function nor an attribute such as attributes.embedding"
            )

    @property
    def attribute(self) -> str | None:
        """The key of the attribute; None if a function makes the vectors."""
        return self.source.removeprefix(ATTRIBUTE) if self.source.startswith(ATTRIBUTE) else None

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the settings. Only vectors with the same fingerprint are compared."""
        fields = [_FORMAT, self.source, self.dimensions, self.metric, self.version]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()

    @property
    def rows_per_part(self) -> int:
        """Maximum number of rows per part, so that it fits into a task."""
        return max(1, _VECTOR_PART_MAX_BYTES // (3 * self.dimensions))

    def __str__(self) -> str:
        """Describe the settings for users."""
        version = f", version {self.version}" if self.version else ""
        return f"{self.source} ({self.dimensions} dimensions, {self.metric}{version})"


def checked_settings(source: str, dimensions: int, metric: str, version: str = "") -> VectorSettings:
    """Return vector settings from a user's values. Raises UsageError if a value is invalid."""
    normalized: Metric = "dot" if metric == "dot" else "cosine"
    if metric != normalized:
        raise UsageError(f"the metric must be cosine or dot, not {metric!r}.")
    try:
        return VectorSettings(source=source, dimensions=dimensions, metric=normalized, version=version)
    except (TypeError, ValueError) as error:
        raise UsageError(f"these vector settings are not valid: {error}.") from error


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an index: its analyzer and its vectors."""

    text: str = "english"
    """The name of the analyzer."""
    vectors: VectorSettings | None = None


PLAIN: Final = IndexSettings()
"""Default settings of an index."""


class PartVectors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Summary of a part's vectors."""

    fingerprint: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    vectors: Annotated[int, msgspec.Meta(ge=0)]
    failed: Annotated[int, msgspec.Meta(ge=0)]
    """Number of spans that should have a vector but lack one: the function failed, or the attribute holds no vector."""


NO_SOURCE: Final = "none"
"""Source name with which users turn vectors off."""
Floats: TypeAlias = "npt.NDArray[np.float32]"
EmbeddingFunction: TypeAlias = Callable[[list[str]], Any]


@dataclass(frozen=True, slots=True)
class Embedder:
    """Declared embedding function with the settings of its vectors. Calling the object calls the function."""

    function: EmbeddingFunction
    dimensions: int
    metric: Metric
    version: str

    def __call__(self, texts: list[str]) -> Any:
        """Call the function and return its result."""
        return self.function(texts)


def embedder(
    *, dimensions: int, metric: Metric = "cosine", version: str = ""
) -> Callable[[EmbeddingFunction], Embedder]:
    """Declare an embedding function: it maps a list of n texts to n rows of `dimensions` numbers.

    Several threads and processes may call the function at once. Lakes name it as `module:function`. Its module must be
    importable wherever tasks and searches run.

    Args:
        dimensions: The length of each vector.
        metric: The comparison of two vectors, `cosine` or `dot`.
        version: A text that changes when the vectors change, such as the model's version. The vectors of a lake must
            then be rebuilt.
    """

    def declared(function: EmbeddingFunction) -> Embedder:
        checked_settings("module:function", dimensions, metric, version)
        return Embedder(function, dimensions, metric, version)

    return declared


def load(source: str) -> tuple[Embedder, VectorSettings]:
    """Import an embedding function by its name, `module:function`; return it with its vector settings.

    Only a declared embedder is ever called, so that a name in a lake cannot make other code run.

    Raises:
        UsageError: The function does not exist here, or is not declared.
    """
    checked_settings(source, 1, "cosine")  # validates the name before anything is imported
    try:
        loaded = pkgutil.resolve_name(source)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the import of the module may raise anything, also SystemExit
        raise UsageError(
            f"the embedding function {source} cannot be imported here: {_describe_error(error)}. "
            "Install its module "
            "where searches and tasks run, or name its folder in PYTHONPATH."
        ) from error
    if not isinstance(loaded, Embedder):
        raise UsageError(
            f"{source} is not declared as an embedder; put @tracelake.embedder(dimensions=…) above it."
        )
    return loaded, checked_settings(source, loaded.dimensions, loaded.metric, loaded.version)


def load_embedder(settings: VectorSettings) -> Embedder:
    """Return the function that made these vectors. Raises UsageError if its settings have changed."""
    function, now = load(settings.source)
    if now != settings:
        raise UsageError(
            f"the vectors of the index come from {settings}, and the function here is {now}: they cannot be "
            f"compared. Rebuild them with `tracelake index rebuild --vectors {settings.source}`, or use the "
            "earlier function."
        )
    return function


def call(function: Embedder, texts: Sequence[str]) -> Floats:
    """Return the vectors of texts, one per row. The caller must check for values that are not finite.

    Raises:
        EmbeddingError: The function failed, took too long, or returned another shape.
    """
    import numpy as np  # noqa: PLC0415  every command reads the settings above, and few need arrays

    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(np.asarray(function(list(texts)), np.float32))
        except BaseException as error:  # noqa: BLE001  of the user: none of ours is raised in there
            failure.append(error)

    # A separate daemon thread, so that a hanging function blocks no caller.
    thread = threading.Thread(target=run, name="tracelake-embedding", daemon=True)
    thread.start()
    thread.join(limits.EMBEDDING_CALL_MAX_S)
    if not outcome and not failure:
        raise EmbeddingError(
            f"the embedding function did not return within {limits.EMBEDDING_CALL_MAX_S:g} s for {len(texts)} texts."
        )
    if failure:
        raise EmbeddingError(f"the embedding function failed: {_describe_error(failure[0])}.") from failure[0]
    shape = (len(texts), function.dimensions)
    if outcome[0].shape != shape:
        raise EmbeddingError(
            f"the embedding function returned the shape {outcome[0].shape} for {shape[0]} texts, not {shape}."
        )
    vectors: Floats = outcome[0]
    return vectors


def requested_vectors(source: str, dimensions: int | None, metric: str | None) -> VectorSettings | None:
    """Return the vector settings that a user requests: of an attribute or a declared function; None for `none`.

    Raises UsageError if the settings are invalid.
    """
    if source == NO_SOURCE:
        return None
    if source.startswith(ATTRIBUTE):
        if dimensions is None:
            raise UsageError(f"set dimensions to the length of the vectors in {source}.")
        return checked_settings(source, dimensions, metric or "cosine")
    if dimensions is not None or metric is not None:
        raise UsageError(
            f"{source} declares its dimensions and metric itself, with @tracelake.embedder; leave them out, "
            f"or name an attribute. Example: {HOW}"
        )
    return load(source)[1]


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[: limits.PROBLEM_MAX_CHARS].rstrip(". ")
