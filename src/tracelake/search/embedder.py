"""Functions of users that make vectors of texts: declared by them, found by name, called with care."""

from __future__ import annotations

import pkgutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelake._errors import EmbeddingError, UsageError
from tracelake.limits import EMBEDDING_CALL_MAX_S, PROBLEM_MAX_CHARS
from tracelake.search.vectors import ATTRIBUTE, HOW, Metric, VectorSettings, checked_settings

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


def load_for(settings: VectorSettings) -> Embedder:
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


def wanted_vectors(source: str, dimensions: int | None, metric: str | None) -> VectorSettings | None:
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
