"""Examples made from spans: which spans, and the content of their examples. Differences between versions of a dataset.

Class `Selection` chooses spans by id, condition or search. `propose` returns content from the messages of a span, which
a person edits before it is stored.

The expected output is the last message of the assistant. The span of an agent often has no output of its own; the last
model call below it then gives the answer.

A version of a dataset is a commit. Only examples whose files differ are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import pyarrow as pa

from tracelake._errors import NotFoundError, UsageError
from tracelake.datasets import model
from tracelake.datasets.files import read_files
from tracelake.erasure.store import ErasureStore
from tracelake.limits import DATASET_ADD_DEFAULT, DATASET_ADD_MAX, EXAMPLES_COMPARED_MAX, SEARCH_HITS_MAX
from tracelake.otlp.chat import ChatMessage
from tracelake.otlp.content import conversation
from tracelake.otlp.conventions import WORKSPACE_DEFAULT
from tracelake.results import SERVER_KINDS, CommitInfo, Row, Trace, is_server_side
from tracelake.search.searcher import SearchRequest
from tracelake.shards.rows import literal
from tracelake.storage import ObjectStore
from tracelake.tables.table import to_rows
from tracelake.tables.view import CommitView
from tracelake.versions.model import FileAt, Reference
from tracelake.versions.repository import Repository

COPIED: Final = ("service", "name", "model")
"""Columns that become metadata of an example."""
_CALLS_READ_MAX: Final = 3
"""Model calls that are read in search of an answer, the last ones first."""


class SpanReader(Protocol):
    """Reads spans of both tiers: committed ones, and those that still wait for their commit."""

    def outline(self, trace_id: str) -> Trace:
        """Return a trace without the texts of its spans."""

    def span_rows(self, trace_id: str, span_id: str) -> pa.Table:
        """Return the rows with a span id in a trace."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Proposed content of an example, and the span behind it."""

    input: str | None
    expected_output: str | None
    metadata: dict[str, str]
    span: Row


def read_span(
    spans: SpanReader,
    trace_id: str,
    span_id: str | None,
    workspace: str | None = None,
    kind: str | None = None,
) -> Row:
    """Return a span, by default the root of its trace.

    If several spans have the id, return one of the default workspace if there is one, and of these the client's.

    Raises NotFoundError if the trace or span does not exist.
    """
    if span_id is None:
        _, root = next(spans.outline(trace_id).walk())
        trace_id, span_id = root["trace_id"], str(root["span_id"])
    rows = [
        row
        for row in to_rows(spans.span_rows(trace_id, span_id))
        if workspace in (None, row["workspace"]) and kind in (None, row["kind"])
    ]
    if not rows:
        raise NotFoundError(f"trace {trace_id} has no span {span_id!r}.")
    return min(rows, key=lambda row: (row["workspace"] != WORKSPACE_DEFAULT, is_server_side(row)))


def propose(spans: SpanReader, span: Row) -> Proposal:
    """Return the proposed content for a span."""
    metadata = {name: span[name] for name in COPIED if span[name]}
    if span["workspace"] != WORKSPACE_DEFAULT:
        metadata["workspace"] = span["workspace"]
    if is_server_side(span):
        metadata["kind"] = span["kind"]
    messages = conversation(span)
    answer = _answer(messages.output) or _plain(span["output"])
    if answer is None:
        answers = (_answer(conversation(call).output) for call in _model_calls(spans, span))
        answer = next(filter(None, answers), None)
    return Proposal(_question(messages.input) or _plain(span["input"]), answer, metadata, span)


def _model_calls(spans: SpanReader, span: Row) -> Iterable[Row]:
    """Yield the last model calls below a span, the last first."""
    below: list[Row] = []
    depth_of_span: int | None = None
    for depth, each in spans.outline(span["trace_id"]).walk():
        if depth_of_span is not None and depth <= depth_of_span:
            break
        if depth_of_span is not None and (each["type"] or ("llm" if each["model"] else None)) == "llm":
            below.append(each)
        if each["span_id"] == span["span_id"] and each["workspace"] == span["workspace"]:
            depth_of_span = depth
    for each in sorted(below, key=lambda each: each["end_ns"], reverse=True)[:_CALLS_READ_MAX]:
        yield read_span(spans, each["trace_id"], each["span_id"], each["workspace"], each["kind"])


def _answer(messages: Sequence[ChatMessage]) -> str | None:
    """Return the text of the last message of the assistant, or its tool calls as JSON."""
    own = [message for message in messages if message.role == "assistant"] or list(messages)
    texts = [message.text for message in own if message.text.strip()]
    return texts[-1] if texts else _as_json(own[-1:]) if own else None


def _question(messages: Sequence[ChatMessage]) -> str | None:
    """Return the text of the only message, or all messages as JSON, because a conversation needs its history."""
    if len(messages) == 1 and all(part.type == "text" for part in messages[0].parts):
        return messages[0].text
    return _as_json(messages) if messages else None


def _as_json(messages: Sequence[ChatMessage]) -> str:
    return json.dumps([_plain_message(message) for message in messages], ensure_ascii=False, indent=2)


def _plain_message(message: ChatMessage) -> dict[str, Any]:
    if all(part.type == "text" for part in message.parts):
        return {"role": message.role, "content": message.text}
    plain: dict[str, Any] = msgspec.to_builtins(message)
    return plain


def _plain(text: str | None) -> str | None:
    return text if text and text.strip() else None


_DATASET_LOOKUP_SPANS: Final = 500
"""Spans whose texts are in memory together while they become examples."""

Key: TypeAlias = tuple[str, str, str, bool]
"""Trace id, span id and workspace, and whether the span is on the server side."""
KEY: Final = ("trace_id", "span_id", "workspace", "kind")
_COLUMNS: Final = (*KEY, "input", "output", "service", "name", "model")
_ORDER: Final = "start_ns, trace_id, span_id, workspace, kind"


@dataclass(frozen=True, slots=True)
class Selection:
    """Choice of spans by ids, or by a search, a condition or both; at most `limit` spans."""

    traces: Sequence[str] = ()
    spans: Sequence[str] = ()
    where: str | None = None
    search: str | None = None
    limit: int = DATASET_ADD_DEFAULT

    def check(self) -> None:
        """Raise UsageError if the selection is empty, or mixes ids with a search or condition."""
        by_id, by_text = bool(self.traces or self.spans), self.where is not None or self.search is not None
        if by_id == by_text:
            raise UsageError(
                "choose the spans to add: traces or spans by id, or a condition, a search, or both."
            )
        most = DATASET_ADD_MAX if self.search is None else SEARCH_HITS_MAX
        if not 1 <= self.limit <= most:
            raise UsageError(f"limit must be from 1 to {most:,} here, not {self.limit:,}.")
        if len(self.traces) + len(self.spans) > DATASET_ADD_MAX:
            raise UsageError(f"at most {DATASET_ADD_MAX:,} ids can be added at once.")

    def keys(self, view: CommitView) -> list[Key]:
        """Return the selected spans of a view, each once. Raises NotFoundError for an unknown id, and QueryError if the
        search or condition does not parse."""
        if self.search is not None:
            hits = view.search(SearchRequest(self.search, self.where, self.limit))
            return [(hit.trace_id, hit.span_id, hit.workspace, hit.kind in SERVER_KINDS) for hit in hits]
        if self.where is not None:
            return _matching(view, f"({self.where}\n) and coalesce(input, output) is not null", self.limit)
        if self.traces:
            return list(dict.fromkeys(key for trace in self.traces for key in self._of_trace(view, trace)))
        return self._everywhere(view)

    def _of_trace(self, view: CommitView, trace_id: str) -> list[Key]:
        trace = view.trace(trace_id)
        if not self.spans:
            walk = [span for _, span in trace.walk()]
            first = next((span for span in walk if _has_text(span)), walk[0])
            return [key_of(first)]
        keys = [key_of(span) for span in trace.spans if span["span_id"] in self.spans]
        missing = set(self.spans) - {span_id for _, span_id, *_ in keys}
        if len(self.traces) == 1 and missing:
            raise NotFoundError(f"trace {trace.trace_id} has no span {min(missing)}.")
        return keys

    def _everywhere(self, view: CommitView) -> list[Key]:
        keys = _matching(view, f"span_id in ({', '.join(map(literal, self.spans))})", DATASET_ADD_MAX)
        if missing := set(self.spans) - {span_id for _, span_id, *_ in keys}:
            raise NotFoundError(
                f"no span {min(missing)!r} in this lake. `tracelake search` finds ids by text."
            )
        return keys


def _matching(view: CommitView, where: str, limit: int) -> list[Key]:
    table = view.table("spans").to_arrow(list(KEY), where, _ORDER, limit)
    return [key_of(row) for row in table.to_pylist()]


def examples(
    view: CommitView, commit: str, keys: Sequence[Key], metadata: Mapping[str, str]
) -> Iterator[list[model.Example]]:
    """Yield the examples made from spans, in batches. A span without input and output makes no example.

    The `metadata` is added to the span's service, name and model.
    """
    for start in range(0, len(keys), _DATASET_LOOKUP_SPANS):
        wanted = set(keys[start : start + _DATASET_LOOKUP_SPANS])
        table = view.table("spans").lookup(sorted({trace_id for trace_id, *_ in wanted}), _COLUMNS)
        yield [
            _example(row, commit, metadata)
            for row in to_rows(table)
            if key_of(row) in wanted and _has_text(row)
        ]


def key_of(span: Row) -> Key:
    """Return the key of a span."""
    return span["trace_id"], span["span_id"], span["workspace"], is_server_side(span)


def _has_text(span: Row) -> bool:
    return span["input"] is not None or span["output"] is not None


def _example(row: Row, commit: str, metadata: Mapping[str, str]) -> model.Example:
    trace_id, span_id, workspace, is_server = key_of(row)
    of = {} if workspace == WORKSPACE_DEFAULT else {"workspace": workspace}
    of |= {"kind": row["kind"]} if is_server else {}
    return model.Example(
        id=model.example_id(trace_id, span_id, workspace, is_server),
        input=row["input"],
        expected_output=row["output"],
        metadata={name: row[name] for name in COPIED if row[name]} | of | dict(metadata),
        provenance=model.Provenance(trace_id, span_id, commit),
    )


_COMMITS_SEARCHED: Final = 200
"""Commits in which the versions of a dataset are searched."""


@dataclass(frozen=True, slots=True)
class ExampleChange:
    """An example that differs between two versions of a dataset; None where it does not exist."""

    id: str
    before: model.Example | None
    after: model.Example | None

    @property
    def change(self) -> str:
        """Kind of the change: `added`, `removed` or `changed`."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the changed fields of a changed example."""
        if self.before is None or self.after is None:
            return ()
        names = ("input", "expected_output", "metadata")
        return tuple(name for name in names if getattr(self.before, name) != getattr(self.after, name))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with `change`."""
        return {
            "id": self.id,
            "change": self.change,
            "fields": list(self.fields),
            "before": self.before and self.before.to_row(),
            "after": self.after and self.after.to_row(),
        }


def diff(
    repository: Repository, objects: ObjectStore, erasures: ErasureStore, name: str, before: str, after: str
) -> Iterator[ExampleChange]:
    """Yield the examples of a dataset that differ between two commits, in order of id, without erased ones. An empty
    commit has none."""
    start, stop = model.examples_of(name)
    masked = erasures.masked().trace_ids

    def read(file: Reference | None) -> model.Example | None:
        files = [file] if isinstance(file, FileAt) else []
        data = next(read_files(objects, files, erasures.is_file_erased), None)
        return (
            None if data is None else model.from_bytes(model.Example, data, f"an example of dataset {name}")
        )

    for change in repository.diff(before, after):
        if change.path >= stop:
            return
        if change.path < start:
            continue
        identity = change.path.rpartition("/")[2]
        if model.trace_of(identity) in masked:
            continue
        sides = read(change.before), read(change.after)
        if sides != (None, None):
            yield ExampleChange(identity, *sides)


def versions(repository: Repository, name: str, head: str, limit: int) -> list[CommitInfo]:
    """Return the newest commits that changed a dataset, the newest first, of the last commits before `head`."""
    start, stop = model.spec_path(name), model.examples_of(name)[1]
    commits: list[CommitInfo] = []
    for commit_id, commit in islice(repository.log(head), _COMMITS_SEARCHED):
        parent = commit.parents[0] if commit.parents else ""
        paths = (change.path for change in repository.diff(parent, commit_id))
        if any(start <= path < stop for path in _up_to(paths, stop)):
            commits.append(
                CommitInfo(
                    commit_id,
                    commit.parents,
                    commit.message,
                    commit.committer,
                    commit.created_at,
                    commit.metadata,
                )
            )
        if len(commits) == limit:
            break
    return commits


def _up_to(paths: Iterable[str], stop: str) -> Iterator[str]:
    for path in paths:
        if path >= stop:
            return
        yield path


def span_example_id(span: Row) -> str:
    """Return the id of the example of a span."""
    return model.example_id(span["trace_id"], span["span_id"], span["workspace"], is_server_side(span))


def remarks(examples: Iterable[model.Example], example: model.Example) -> tuple[str, ...]:
    """Return warnings about an example that is to be added to others: no expected output, or the same input."""
    warnings = []
    if not (example.expected_output or "").strip():
        warnings.append("It has no expected output, so that scorers have nothing to compare with.")
    if not (example.input or "").strip():
        warnings.append("It has no input.")
    wanted = " ".join((example.input or "").split())
    same = (
        other.id
        for other in islice(examples, EXAMPLES_COMPARED_MAX)
        if wanted and other.id != example.id and " ".join((other.input or "").split()) == wanted
    )
    if (identity := next(same, None)) is not None:
        warnings.append(f"Example {identity} has the same input.")
    return tuple(warnings)
