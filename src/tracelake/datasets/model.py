"""Records and entry paths of datasets. Pure: no I/O, no clock.

An example is the commit entry `datasets/<dataset>/<id>`, which references a file by its content. The dataset itself
is the entry `datasets/<dataset>/.dataset`. It sorts before the examples, because their ids are hex digits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from tracelake._errors import LimitError, UsageError
from tracelake.formats import decode, encode
from tracelake.limits import DATASET_NOTES_MAX_CHARS, EXAMPLE_TEXT_MAX_CHARS
from tracelake.otlp.conventions import WORKSPACE_DEFAULT
from tracelake.storage.ports import encode_text
from tracelake.versions.tree import DATASETS, below

FORMAT_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_SPEC: Final = ".dataset"


class DatasetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The specification of a dataset."""

    name: str
    description: str = ""
    format_version: int = FORMAT_VERSION


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The origin of an example: a span as of a commit.

    The commit is empty if the span was not committed yet, and all fields are empty if a person wrote the example.
    """

    trace_id: str
    span_id: str
    commit: str


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One example: the input, the expected output, and the origin of both."""

    id: str
    input: str | None
    expected_output: str | None
    metadata: dict[str, str]
    provenance: Provenance
    format_version: int = FORMAT_VERSION

    def to_row(self) -> dict[str, Any]:
        """Return the example as a flat row for exports, with the provenance in separate columns."""
        return {
            "id": self.id,
            "input": self.input,
            "expected_output": self.expected_output,
            "metadata": self.metadata,
            "trace_id": self.provenance.trace_id or None,
            "span_id": self.provenance.span_id or None,
            "commit": self.provenance.commit or None,
        }


RecordT = TypeVar("RecordT", DatasetSpec, Example)


def to_bytes(record: DatasetSpec | Example) -> bytes:
    """Encode as JSON. Equal records give equal bytes."""
    return encode(record)


def from_bytes(kind: type[RecordT], data: bytes, what: str) -> RecordT:
    """Decode a record. Raises DamageError, which names the record by `what`, if it is torn or has another format."""
    return decode(kind, data, what, FORMAT_VERSION)


def check_name(name: str) -> None:
    """Raise UsageError if the name is not allowed for a dataset."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a dataset: use up to 63 letters and digits, with . _ - "
            "between them."
        )


def check_notes(what: str, texts: Iterable[str]) -> None:
    """Raise LimitError if the texts are too long together, UsageError if one is not Unicode."""
    joined = "".join(texts)
    encode_text(what, joined)
    if len(joined) > DATASET_NOTES_MAX_CHARS:
        raise LimitError(
            f"the {what} has {len(joined):,} characters, more than DATASET_NOTES_MAX_CHARS = "
            f"{DATASET_NOTES_MAX_CHARS:,}; shorten it."
        )


def check_texts(input: str | None, expected: str | None) -> None:
    """Raise LimitError if the content of an example is too long, UsageError if it is no Unicode text or has no input
    and no expected output."""
    text = f"{input or ''}{expected or ''}"
    encode_text("content of an example", text)
    if not text:
        raise UsageError("an example needs an input or an expected output; write one of them.")
    if len(text) > EXAMPLE_TEXT_MAX_CHARS:
        raise LimitError(
            f"the example has {len(text):,} characters, more than EXAMPLE_TEXT_MAX_CHARS = "
            f"{EXAMPLE_TEXT_MAX_CHARS:,}; shorten its input or expected output."
        )


def example_digest(example: Example) -> str:
    """Return a digest of an example's content, by which an editor notices another edit in the meantime."""
    return hashlib.sha256(to_bytes(example)).hexdigest()[:32]


def written_id(input: str | None, expected: str | None) -> str:
    """Return the id of an example that a person wrote without a span. The same input makes the same example."""
    return hashlib.sha256(encode_text("content of an example", input or expected or "")).hexdigest()[:32]


def example_id(trace_id: str, span_id: str, workspace: str, is_server: bool) -> str:
    """Return the id of the example made from a span. It depends only on the span, so a span makes one example.

    In the default workspace, it consists of both ids. Another workspace adds a hash of its name. A span on the server
    side adds `-server`, because a client span may have the same ids.
    """
    side = "-server" if is_server else ""
    if workspace == WORKSPACE_DEFAULT:
        return f"{trace_id}-{span_id}{side}"
    return (
        f"{trace_id}-{span_id}-{hashlib.sha256(encode_text('workspace', workspace)).hexdigest()[:16]}{side}"
    )


def trace_of(identity: str) -> str:
    """Return the trace of an example, from the example's id."""
    return identity.partition("-")[0]


def spec_path(name: str) -> str:
    """Return the entry path of a dataset's specification."""
    return f"{DATASETS}/{name}/{_SPEC}"


def is_spec(path: str) -> bool:
    """Return whether an entry is a dataset's specification."""
    return path.endswith(f"/{_SPEC}")


def example_path(name: str, identity: str) -> str:
    """Return the entry path of an example."""
    return f"{DATASETS}/{name}/{identity}"


def examples_of(name: str) -> tuple[str, str]:
    """Return the start and stop of the entry paths of a dataset's examples."""
    start, stop = below(f"{DATASETS}/{name}")
    return f"{start}0", stop


def dataset_of(path: str) -> str | None:
    """Return the dataset to which an entry belongs, None for another kind of entry."""
    folder, _, remainder = path.partition("/")
    return remainder.partition("/")[0] if folder == DATASETS and "/" in remainder else None
