"""What the spans of a part lie within, so that searches can leave out parts that have nothing of what they ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import tantivy

from tracelake.limits import INDEX_CONTENTS_MAX_VALUES, INDEX_VALUE_MAX_CHARS
from tracelake.search import fields

NAMED: Final = {"service": "services", "workspace": "workspaces"}
"""Fields of which a part names all values, with where they stand."""


class PartContents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The times at which the spans of a part start, both included, and their values of some fields, in lower case.

    It may be wider than what is there, and never narrower. Values that are too many or too long are None: any.
    """

    first_ns: int
    last_ns: int
    services: tuple[str, ...] | None
    workspaces: tuple[str, ...] | None

    def __post_init__(self) -> None:
        """Refuse what cannot be, when written and when read."""
        if self.first_ns > self.last_ns:
            raise ValueError(f"the first span starts at {self.first_ns}, after the last at {self.last_ns}")

    def values(self, field: str) -> tuple[str, ...] | None:
        """Return the values of one of the fields that are `NAMED`, None for any."""
        values: tuple[str, ...] | None = getattr(self, NAMED[field])
        return values


class ContentsOf:
    """Looks at the rows of a part as they pass by."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._values: dict[str, set[str] | None] = {field: set() for field in NAMED}

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take note of some rows, at least one, and return them as they are."""
        ends: Any = pc.min_max(batch.column("start_ns"))
        self._times += [ends["min"].as_py(), ends["max"].as_py()]
        for field, values in self._values.items():
            if values is not None:
                different: Any = pc.unique(batch.column(field))
                self._values[field] = _bounded(values.union(filter(None, different.to_pylist())))
        return batch

    def finish(self) -> PartContents | None:
        """Return what they all lie within, None of no rows."""
        return _contents(self._times, self._values)


def together(several: Iterable[PartContents | None]) -> PartContents | None:
    """Return what parts lie within when they are one; None where one of them does not say it."""
    times: list[int] = []
    values: dict[str, set[str] | None] = {field: set() for field in NAMED}
    for each in several:
        if each is None:
            return None
        times += [each.first_ns, each.last_ns]
        for field, before in values.items():
            own = each.values(field)
            values[field] = None if before is None or own is None else _bounded(before.union(own))
    return _contents(times, values)


def _bounded(values: set[str]) -> set[str] | None:
    few = len(values) <= INDEX_CONTENTS_MAX_VALUES
    return values if few and all(len(value) <= INDEX_VALUE_MAX_CHARS for value in values) else None


def _contents(times: Sequence[int], values: dict[str, set[str] | None]) -> PartContents | None:
    if not times:
        return None
    by_name = {
        NAMED[field]: None if own is None else tuple(sorted({fields.lowered(value) for value in own}))
        for field, own in values.items()
    }
    return PartContents(first_ns=min(times), last_ns=max(times), **by_name)


def spans_outside(searcher: tantivy.Searcher, contents: PartContents) -> int:
    """Return how many spans of an index start at other times, or have other values, than its contents say."""
    schema, all_of_them = fields.schema(), tantivy.Query.all_query()
    within = tantivy.Query.range_query(
        schema, "start", tantivy.FieldType.Integer, contents.first_ns, contents.last_ns
    )
    outside = [_without(all_of_them, within)]
    for field in NAMED:
        values = contents.values(field)
        if values is not None:
            having = tantivy.Query.exists_query(field)
            outside.append(_without(having, tantivy.Query.term_set_query(schema, field, list(values))))
    hits: Any = searcher.search(
        tantivy.Query.boolean_query([(tantivy.Occur.Should, query) for query in outside]), 1, count=True
    )
    return int(hits.count or 0)


def _without(query: tantivy.Query, other: tantivy.Query) -> tantivy.Query:
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.MustNot, other)])
