"""Vectors beside the text: where they come from, and what a part says of its own.

Settings belong to an index and stand in its manifest. A part has vectors of one settings, or none; a search compares
with vectors of the manifest's settings alone, so vectors of two are never mixed (F12).
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from tracelake._errors import UsageError
from tracelake.limits import VECTOR_DIMENSIONS_MAX, VECTOR_NAME_MAX_CHARS, VECTOR_PART_MAX_BYTES

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
