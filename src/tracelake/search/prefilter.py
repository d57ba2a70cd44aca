"""Prefilter for queries: tests on the payload and on the text of a span, without an index.

A prefilter passes all spans that the query finds, and perhaps more. Only these spans need to be indexed for the query.
The prefilter searches for words and whole values. If a span may match without containing them, such as by a number in
another notation, the query has no prefilter.

The module also prunes index parts by their contents: a search skips a part if its contents exclude every hit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import tantivy
from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tracelake._errors import QueryError
from tracelake.otlp.wire import has_old_names
from tracelake.search import analyzers, query_values
from tracelake.search.analyzers import Analyzer, Word
from tracelake.search.lookups import is_inherited
from tracelake.search.model import NAMED, PartContents, PartRef
from tracelake.search.query_compiler import KEYWORDS, forms_of, ids_in, tree
from tracelake.search.query_parser import OWNERS, AllOf, AnyOf, Boost, Last, Node, Text, ValueRange
from tracelake.search.query_values import starts
from tracelake.search.results import beginning
from tracelake.search.tokenization import normalized

SIEVE_TEXTS_MAX: Final = 16
"""Strings that a search's prefilter looks for in input left to a pipeline."""

_ESCAPED_IN_JSON: Final = '"\\'
Sieve: TypeAlias = Callable[[bytes], bool]
"""Function that returns whether a text may match the query."""


@dataclass(frozen=True, slots=True)
class Prefilter:
    """Tests of a query on the texts of spans, as `documents.written` in lower case and UTF-8, and on their payloads."""

    text_passes: Sieve
    payload_passes: Sieve | None
    """For the result of `payload_text`; None if any may match."""

    def __call__(self, text: bytes) -> bool:
        """Return whether a text may match the query."""
        return self.text_passes(text)


def prefilter_of(
    query: str, service: str | None, workspace: str | None, analyzer: Analyzer
) -> Prefilter | None:
    """Return the prefilter of a query in one service and workspace; None if any span may match.

    Also None if the query does not parse, because the search itself reports the error.
    """
    try:
        node = tree(query)
    except (ValueError, QueryError):
        return None
    if is_inherited(node):
        return None  # Any span may have the value from its trace.
    whole_values = [
        Text(field, value.encode(errors="replace").decode(), 0, quoted=True)
        for field, value in (("service", service), ("workspace", workspace))
        if value is not None
    ]
    every = AllOf((node, *whole_values))
    needed, of_payload = (_of_node(every, analyzer, find) for find in (_needles, texts_of_payload))
    return (
        None if needed is None else Prefilter(needed.sieve, None if of_payload is None else of_payload.sieve)
    )


@dataclass(frozen=True, slots=True)
class _Needed:
    """A sieve, and the number of texts that it searches for."""

    sieve: Sieve
    texts: int


_FindNeedles: TypeAlias = Callable[[Text, Analyzer], Iterable[str]]


def _of_node(node: Node, analyzer: Analyzer, find: _FindNeedles) -> _Needed | None:
    match node:
        case Boost(inner, _):
            return _of_node(inner, analyzer, find)
        case AllOf(nodes):
            return _all([needed for each in nodes if (needed := _of_node(each, analyzer, find)) is not None])
        case AnyOf(nodes):
            several = [needed for each in nodes if (needed := _of_node(each, analyzer, find)) is not None]
            return _any(several) if len(several) == len(nodes) else None
        case Text():
            return _all([_has(needle) for needle in find(node, analyzer) if needle])
        case _:
            return None


def _needles(node: Text, analyzer: Analyzer) -> Iterable[str]:
    """Return texts that each matching span contains; "" if no text is certain."""
    if node.distance and not node.quoted:
        return []
    if (ids := ids_in(node)) is not None:
        return [each for each in (ids.trace_id, ids.span_id) if each is not None]
    if node.field is None or node.field in analyzers.TEXTS:
        return [_of_word(word, analyzer) for word in analyzer.words_wanted(node.text)]
    is_number = not node.quoted and not node.prefix and query_values.double(node.text) is not None
    if node.field == "status" and node.text.lower() == "unset":
        return []
    if node.field in (*KEYWORDS, "span") or (node.field.startswith(OWNERS) and not is_number):
        value = analyzers.lowered(normalized(node.text))
        return [_sure_of_value(value, may_be_json=node.field.startswith(OWNERS))]
    return []


_DERIVED: Final = ("kind", "status", "workspace", "trace", "span")
"""Fields whose values a payload has in another form, or not at all."""
_RUN: Final = re.compile(r"[a-z0-9]+")
_ESCAPE: Final = re.compile(r"^(?:u[0-9a-f]{0,4}|[bfnrt])")
"""The beginning of a run that may be the end of a JSON escape, because arrays and maps become JSON."""
_NUMBER: Final = re.compile(r"[0-9]*e?[0-9]*")
_GENERATED: Final = "true false null nan infinity role content system user assistant tool"
"""Words of texts that are not strings of the payload: other values, and names in messages of events."""


def texts_of_payload(node: Text, analyzer: Analyzer) -> Iterable[str]:
    """Return texts that the payload of each matching span contains; "" if no text is certain.

    Letters and digits without anything between them come from one string of a payload that has a `payload_text`.
    """
    if node.field in _DERIVED or ids_in(node) is not None:
        return []
    return [run_of_payload(needle) for needle in _needles(node, analyzer)]


def run_of_payload(needle: str) -> str:
    """Return the longest run of ASCII letters and digits that can only come from a string of the payload."""
    runs = [_ESCAPE.sub("", run) for run in _RUN.findall(needle)]
    return max(
        (run for run in runs if not _NUMBER.fullmatch(run) and run not in _GENERATED), key=len, default=""
    )


ENCODED_TEXT: Final = tuple(
    (begin, re.compile(re.escape(begin) + end, re.DOTALL))
    for begin, end in (  # A literal is found many times faster than a choice of several.
        # Characters that become ASCII letters or digits: dotted I, Kelvin, ligatures and full-width forms.
        (b"\xc4\xb0", b""),
        (b"\xe2\x84\xaa", b""),
        (b"\xef", rb"(?:\xac[\x80-\x86]|\xbc[\x90-\x99\xa1-\xba]|\xbd[\x81-\x9a])"),
        # JSON escapes of these, and of letters, digits and the backslash.
        (b"\\u", rb"(?i:0130|212a|fb0[0-6]|ff[1-5]|00(?:3[0-9]|[46][1-9a-f]|[57][0-9a]|5c))"),
        # An AnyValue with at least 127 bytes, which become base64: a KeyValue has it, or an ArrayValue.
        (b"\x12", rb"[\x80-\xff]{1,4}[\x00-\x7f]:"),
        (b"\n", rb"[\x80-\xff]{1,4}[\x00-\x7f]:"),
    )
)
_FEWER_BYTES: Final = tuple(re.compile(tag + rb"(?=(.):(.))", re.DOTALL) for tag in (b"\x12", b"\n"))


def payload_text(payload: bytes) -> bytes | None:
    """Return the input of a payload sieve: a `TracesData` with ASCII in lower case. Return None if the payload may have
    letters or digits of texts in another form."""
    try:
        traces = TracesData.FromString(payload)
    except DecodeError:
        return None
    traces.DiscardUnknownFields()
    # Senders may write a message in several forms. In this one, the bytes of an AnyValue follow its length at once.
    text = traces.SerializeToString()
    is_encoded = (
        has_old_names(payload)
        or any(begin in text and pattern.search(text) for begin, pattern in ENCODED_TEXT)
        or any(ord(size) == ord(inner) + 2 for tag in _FEWER_BYTES for size, inner in tag.findall(text))
    )
    return None if is_encoded else text.lower()


def _of_word(word: Word, analyzer: Analyzer) -> str:
    """Return the common prefix of all words that have this stem, or that begin with this word."""
    return _sure(beginning(word.stem) if analyzer.stemmed else word.stem)


def _sure(text: str) -> str:
    """Return the longest run of characters that every text with the same lower-case form contains unchanged.

    Only ASCII is certain among letters with two cases. A lower-case letter may have gained an upper case in a newer
    Unicode than Python's. Control characters are excluded because terms use them as replacements.
    """
    return _longest(text, _is_sure)


def _sure_of_value(text: str, *, may_be_json: bool) -> str:
    """Return the same as `_sure` for a whole value, which may have another Unicode form or be JSON inside an array."""
    unsure = _ESCAPED_IN_JSON if may_be_json else ""
    return _longest(
        text,
        lambda letter: (
            letter not in unsure
            and _is_sure(letter)
            and not unicodedata.combining(letter)
            and unicodedata.normalize("NFKD", letter) == letter
        ),
    )


def _longest(text: str, is_sure: Callable[[str], bool]) -> str:
    return max("".join(letter if is_sure(letter) else "\n" for letter in text).split("\n"), key=len)


def _is_sure(letter: str) -> bool:
    return letter.isprintable() and (
        letter.isascii() or (letter == letter.lower() == letter.upper() and not letter.islower())
    )


def _has(needle: str) -> _Needed:
    encoded = needle.encode()
    return _Needed(lambda text: encoded in text, 1)


def _all(several: Sequence[_Needed]) -> _Needed | None:
    """Return a prefilter that requires all of these, within the limit of texts. Omitting the others only passes more
    spans."""
    sieves, texts = list[Sieve](), 0
    for each in several:
        if texts + each.texts <= SIEVE_TEXTS_MAX:
            sieves.append(each.sieve)
            texts += each.texts
    return _Needed(lambda text: all(sieve(text) for sieve in sieves), texts) if sieves else None


def _any(several: Sequence[_Needed]) -> _Needed:
    texts = sum(each.texts for each in several)
    return _Needed(lambda text: any(each.sieve(text) for each in several), texts)


NEWEST_AHEAD_MAX_S: Final = 86_400
"""Time in the future at which a trace or span may start and still rank among the newest."""
SEARCH_NEWEST_SHARE: Final = 0.125
"""Share of all spans, in the newest parts, that a newest-first search reads first."""

_INT64_MAX: Final = (1 << 63) - 1
MayMatch: TypeAlias = Callable[[PartContents], bool]
"""Function that returns whether a part may have hits."""


def newest_after(parts: Sequence[PartRef]) -> int | None:
    """Return a time after which a small share of all spans start, in the newest parts; None if the contents give
    none."""
    last = [(part.contents.last_ns, part.documents) for part in parts if part.contents is not None]
    room = SEARCH_NEWEST_SHARE * sum(part.documents for part in parts)
    if len(last) < len(parts):
        return None
    for number, (last_ns, documents) in enumerate(sorted(last, reverse=True)):
        room -= documents
        if room < 0:
            return last_ns if number else None
    return None


def only_after(schema: tantivy.Schema, query: tantivy.Query, after_ns: int) -> tantivy.Query:
    """Restrict a query to spans that start after a time. tantivy skips segments without such spans."""
    later = tantivy.Query.range_query(
        schema, "start", tantivy.FieldType.Integer, after_ns, include_lower=False
    )
    uncounted = tantivy.Query.const_score_query(later, 0.0)
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.Must, uncounted)])


def latest_start(now_ns: int) -> int:
    """Return the latest start time of spans that are listed among the newest."""
    return min(now_ns + NEWEST_AHEAD_MAX_S * 10**9, _INT64_MAX)


def only_until(schema: tantivy.Schema, query: tantivy.Query, time_ns: int) -> tantivy.Query:
    """Restrict a query to spans that start at a time or before."""
    until = tantivy.Query.range_query(schema, "start", tantivy.FieldType.Integer, None, time_ns)
    uncounted = tantivy.Query.const_score_query(until, 0.0)
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.Must, uncounted)])


def may_match(node: Node, now_ns: int) -> MayMatch | None:  # noqa: PLR0911 - one for each kind of node
    """Return a test for parts that may have hits of a parsed query; None if any part may.

    An operand of NOT excludes no part: a part with one service may have other services too.
    """
    match node:
        case Boost(inner, _):
            return may_match(inner, now_ns)
        case AllOf(nodes):
            needed = [may for each in nodes if (may := may_match(each, now_ns)) is not None]
            return (lambda contents: all(may(contents) for may in needed)) if needed else None
        case AnyOf(nodes):
            each_may = [may_match(each, now_ns) for each in nodes]
            decidable = [may for may in each_may if may is not None]
            if len(decidable) < len(each_may):
                return None
            return lambda contents: any(may(contents) for may in decidable)
        case Last() | ValueRange("start"):
            return _starting(starts(node, now_ns))
        case Text("start", text, place) if text:
            return _starting(starts(ValueRange("start", text, text, place), now_ns))
        case Text(field) if field in NAMED and node.text:
            return _has_text(field, node)
        case _:
            return None


def _starting(period: tuple[int, int] | None) -> MayMatch:
    if period is None:
        return lambda _contents: False
    first, last = period
    return lambda contents: contents.first_ns <= last and first <= contents.last_ns


def _has_text(field: str, node: Text) -> MayMatch | None:
    if node.distance and not node.quoted:
        return None
    forms = tuple(map(analyzers.lowered, forms_of(node.text)))

    def may(contents: PartContents) -> bool:
        values = contents.values(field)
        if values is None:
            return True
        return any(each.startswith(forms) if node.prefix else each in forms for each in values)

    return may
