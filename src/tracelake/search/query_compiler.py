"""Query compiler: turns the trees of query_parser.py into tantivy queries. It also returns the words to highlight, and
errors that name the problem.

All clauses become terms, ranges and phrases of the index, so no filter reads rows. Filters add nothing to the score,
so that hits are ranked by their words. docs/reference/search.md is the user documentation.

Compiled queries do not depend on an index, so each is compiled once and cached.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NoReturn, get_args

import tantivy

from tracelake import limits
from tracelake._errors import QueryError
from tracelake.otlp.conventions import SpanType
from tracelake.search import analyzers, query_parser, query_values
from tracelake.search.analyzers import ANALYZERS, EARLIER, ENGLISH, Analyzer, Word, get_analyzer, hint_of
from tracelake.search.lookups import (
    INHERITED,
    NO_LOOKUPS,
    Lookups,
    cost_condition,
    doubles_of,
    is_inherited,
    is_like,
    is_number,
    is_relative,
    leaves,
    reads_rows,
    type_query,
    types_wanted,
    value_test,
)
from tracelake.search.query_parser import (
    ASSESSED,
    ASSESSMENTS,
    ORDERED,
    OWNERS,
    TABLE_NUMBERS,
    AllOf,
    AnyOf,
    Boost,
    Clause,
    Everything,
    Last,
    Node,
    Not,
    QuerySyntaxError,
    Text,
    ValueRange,
    escaped,
)
from tracelake.search.query_values import number_terms, path_term, starts, term_of
from tracelake.search.similar import SPAN
from tracelake.search.tokenization import has_unspaced

QUERIES_KEPT: Final = 256
"""Parsed queries that a process caches."""
_QUERY_FUZZY_COST: Final = 4
"""Cost of a word with ~2 in each searched field; a word with * or ~1 costs 1."""

EXAMPLE: Final = '"refund policy" AND service:airline-agent'
KEYWORDS: Final = (*analyzers.FACETS, "trace")
FIELDS: Final = (*KEYWORDS, "type", *ORDERED, *analyzers.TEXTS, "span", "has", "like")
"""All fields except attributes and assessments, for which see `OWNERS` and `ASSESSED`."""

_REBUILT: Final = "an index of this version; run `tracelake index rebuild`"
SPAN_ID_DIGITS: Final = 16
_IDS: Final = (
    re.compile("(?:tr-)?(?P<trace>[0-9a-f]{32})", re.ASCII),
    re.compile("(?P<span>[0-9a-f]{16})", re.ASCII),
    re.compile("(?:[0-9a-f]{2}-)?(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})(?:-[0-9a-f]{2})?", re.ASCII),
)
"""Ids as tools show them. MLflow prefixes a trace id with `tr-`."""
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_SPECIAL: Final = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
"""Special characters of regular expressions. tantivy rejects a backslash before most other characters."""


def parse(
    index: tantivy.Index,
    query: str,
    now_ns: int,
    lookups: Lookups = NO_LOOKUPS,
    analyzer: Analyzer = ENGLISH,
) -> tantivy.Query | None:
    """Return the query for an index; None if the query has no words. Raises QueryError if it does not parse.

    Args:
        now_ns: The end of `last 2h`.
        lookups: Answer the clauses that depend on more than the query.
        analyzer: The analyzer of the index.
    """
    try:
        return compiled(index, tree(query), now_ns, lookups, analyzer)
    except ValueError as error:
        raise refusal(query, error) from error


def compiled(
    index: tantivy.Index,
    node: Node,
    now_ns: int,
    lookups: Lookups = NO_LOOKUPS,
    analyzer: Analyzer = ENGLISH,
) -> tantivy.Query | None:
    """Return the query of a tree; None if it has no words. Raises QuerySyntaxError if a value does not fit its
    field."""
    return _Compiler(index, now_ns, lookups, analyzer).compiled(node)


def only_of(index: tantivy.Index, query: tantivy.Query, field: str, value: str) -> tantivy.Query:
    """Restrict a query to one service or workspace, whose name matches in any case. Scores do not change."""
    text = value.encode(errors="replace").decode()  # no name contains a lone surrogate
    by_value = tantivy.Query.term_query(index.schema, field, analyzers.lowered(text), "basic")
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.Must, _filter(by_value))])


def tree(query: str) -> Node:
    """Return the tree of a query. Raises QuerySyntaxError or QueryError if it is empty, too long, or too costly, or
    does not parse."""
    if not query.strip():
        raise QueryError(
            f"the search is empty; give words to look for, or * for all spans. Example: {EXAMPLE}"
        )
    if len(query) > limits.QUERY_MAX_CHARS:
        raise QueryError(
            f"the search has {len(query)} characters, more than the limit of {limits.QUERY_MAX_CHARS}; search "
            f"for its rarest words. Example: {EXAMPLE}"
        )
    parsed = query_parser.parse(_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", query))
    open_ended = [
        node for node in leaves(parsed) if isinstance(node, Text) and (node.prefix or node.distance)
    ]
    if len(open_ended) > limits.QUERY_OPEN_WORDS_MAX:
        raise QuerySyntaxError(
            open_ended[limits.QUERY_OPEN_WORDS_MAX].place,
            f"more than {limits.QUERY_OPEN_WORDS_MAX} words of it have * or ~; write some of them out",
        )
    cost = 0
    for node in open_ended:
        cost += _cost(node)
        if cost > limits.QUERY_OPEN_COST_MAX:
            raise QuerySyntaxError(
                node.place,
                "its words with ~ match too many words of the index; write ~1 in place of ~2, name a field, "
                "or write some of them out",
            )
    return parsed


def _cost(node: Text) -> int:
    """Return the cost of a word with * or ~: the number of fields times the number of terms that it may match."""
    terms = _QUERY_FUZZY_COST if node.distance > 1 and not node.quoted else 1
    return terms * (len(analyzers.TEXTS) if node.field is None else 1)


@dataclass(frozen=True, slots=True)
class _Compiler:
    """Compiler of trees to queries for one index at one time."""

    index: tantivy.Index
    now_ns: int
    lookups: Lookups
    analyzer: Analyzer

    def compiled(self, node: Node) -> tantivy.Query | None:  # noqa: PLR0911 - one for each kind of node
        """Return the query for the documents of a node; None if the node has no word, such as `!!!`."""
        match node:
            case Boost(inner, factor):
                query = self.compiled(inner)
                return None if query is None else tantivy.Query.boost_query(query, factor)
            case Not(_):
                return self._conjunction([node])
            case AllOf(nodes):
                # Service spans have a few words, agent spans hundreds. With OR by default, short spans with
                # only one word of the query would rank first.
                return self._conjunction(nodes)
            case AnyOf(nodes):
                queries = [query for inner in nodes if (query := self.compiled(inner)) is not None]
                return _boolean([(tantivy.Occur.Should, query) for query in queries])
            case Text(field):
                return self._words(node, analyzers.TEXTS) if field is None else self._text(node, field)
            case ValueRange():
                return self._range(node)
            case Last():
                return self._integers("start", starts(node, self.now_ns))
            case Everything():
                return _filter(tantivy.Query.all_query())

    def _conjunction(self, nodes: Sequence[Node]) -> tantivy.Query | None:
        clauses: list[tuple[tantivy.Occur, tantivy.Query]] = []
        for node in nodes:
            query = self.compiled(node.node if isinstance(node, Not) else node)
            if query is not None:
                occur = tantivy.Occur.MustNot if isinstance(node, Not) else tantivy.Occur.Must
                clauses.append((occur, query))
        if clauses and all(occur == tantivy.Occur.MustNot for occur, _ in clauses):
            # tantivy finds nothing if a query only has excluded terms.
            clauses.append((tantivy.Occur.Must, _filter(tantivy.Query.all_query())))
        return _boolean(clauses)

    def _text(self, node: Text, field: str) -> tantivy.Query | None:  # noqa: PLR0911 - one for each kind of field
        """Return the query for a value of one field."""
        if field in analyzers.TEXTS and (node.text or not node.prefix):
            return self._words(node, (field,))
        if node.prefix and not node.text:
            return self._exists(field, node.place)
        if field == "has":
            return self._exists(node.text, node.place, prefix=node.prefix)
        if field.startswith(OWNERS):
            return self._attribute(node, field)
        if field.startswith(ASSESSED):
            return self._assessed(field, node.place, value_test(node))
        if not node.text:
            raise QuerySyntaxError(
                node.place, f"the value is empty; to find spans without it, write NOT has:{field}"
            )
        if field == "status" and node.text.lower() == "unset" and not node.prefix and not node.distance:
            return _filter(self._unset(node))
        if field in KEYWORDS:
            query = self._exact(node, field, node.text)
            if field in INHERITED and self.lookups.inherited is not None:
                query = self.lookups.inherited(node, query)
            return _filter(query)
        if field == "span":
            return _filter(self._span(node))
        if field == "type":
            return _filter(_either([type_query(self.index.schema, each) for each in types_wanted(node)]))
        if field in ORDERED:
            return self._range(ValueRange(field, node.text, node.text, node.place))
        return self._like(node) if field == "like" else _no_field(node, field)

    def _like(self, node: Text) -> tantivy.Query:
        ids = SPAN.fullmatch(node.text.lower())
        if ids is None or node.prefix or node.distance:
            raise QuerySyntaxError(
                node.place, "like: needs a span, written as its trace id and its span id with - between"
            )
        query = self.lookups.alike(ids[1], ids[2]) if self.lookups.alike is not None else None
        if query is None:
            raise QuerySyntaxError(node.place, f"there is no span {node.text} here; copy both ids from a hit")
        return query

    def _unset(self, node: Text) -> tantivy.Query:
        """Return the query for spans whose status is unset: the status is recorded as such, or OTLP had none."""
        without = [
            (tantivy.Occur.Must, tantivy.Query.all_query()),
            (tantivy.Occur.MustNot, tantivy.Query.exists_query("status")),
        ]
        return _either([self._exact(node, "status", node.text), tantivy.Query.boolean_query(without)])

    def _span(self, node: Text) -> tantivy.Query:
        """Return the query for a span id, or for its first digits."""
        if not self.analyzer.has_all_terms:
            raise QuerySyntaxError(node.place, f"span: needs {_REBUILT}")
        digits, value = self.analyzer.span_term_digits, analyzers.lowered(node.text)
        if digits is None or (node.prefix and len(value) <= digits):
            return self._exact(node, "attribute", term_of(path_term("span"), value))
        if node.distance and not node.quoted:
            raise QuerySyntaxError(
                node.place, "~ applies to words and names, not to span ids; write span:ab* instead"
            )
        if self.lookups.spans is None or not (node.prefix or len(value) == SPAN_ID_DIGITS):
            return tantivy.Query.empty_query()
        rows = list(self.lookups.spans(term_of(path_term("span"), value[:digits]), value))
        return tantivy.Query.term_set_query(self.index.schema, "row", rows)

    def _assessed(self, field: str, place: int, matches: Callable[[Any], bool]) -> tantivy.Query:
        """Return the query for spans whose trace has an assessment that passes a test."""
        prefix, dot, name = field.partition(".")
        if not name:
            raise QuerySyntaxError(place, f"{field} needs the name of an assessment: {field}correct:false")
        if self.lookups.assessed is None:
            return tantivy.Query.empty_query()
        traces = self.lookups.assessed(ASSESSMENTS[prefix + dot], name, matches)
        return _filter(tantivy.Query.term_set_query(self.index.schema, "trace", sorted(traces)))

    def _rows(self, condition: str) -> tantivy.Query:
        """Return the query for the spans whose rows meet an SQL condition."""
        if self.lookups.rows_where is None:
            return tantivy.Query.empty_query()
        rows = list(self.lookups.rows_where(condition))
        return _filter(tantivy.Query.term_set_query(self.index.schema, "row", rows))

    def _of_ids(self, node: Text) -> tantivy.Query | None:
        """Return the query for a trace or span if the word is its id; None for any other word."""
        ids = ids_in(node)
        if ids is None:
            return None
        clauses = [] if ids.trace_id is None else [self._exact(node, "trace", ids.trace_id)]
        if ids.span_id is not None:
            if not self.analyzer.has_all_terms:
                return None
            clauses.append(self._span(replace(node, text=ids.span_id)))
        return _filter(_every(clauses))

    def _exact(self, node: Text, field: str, value: str) -> tantivy.Query:
        """Return the query for a whole value, in each of its Unicode forms."""
        return _either([self._in_form(node, field, form) for form in forms_of(value)])

    def _in_form(self, node: Text, field: str, value: str) -> tantivy.Query:
        schema, value = self.index.schema, analyzers.lowered(value)
        if node.prefix or node.distance:
            distance = 0 if node.quoted else min(node.distance, 2)
            return tantivy.Query.fuzzy_term_query(schema, field, value, distance, prefix=node.prefix)
        return tantivy.Query.term_query(schema, field, value, "basic")

    def _attribute(self, node: Text, path: str) -> tantivy.Query:
        if len(node.text) > limits.INDEX_VALUE_MAX_CHARS:
            raise QuerySyntaxError(
                node.place,
                f"attribute values match as a whole up to {limits.INDEX_VALUE_MAX_CHARS} characters; search "
                f"for words of it, AND has:{path}",
            )
        if node.distance:
            raise QuerySyntaxError(
                node.place, f"~ applies to words and names, not to attributes; write {path}:ab* instead"
            )
        paths = self._paths(path, node.place)
        written = [self._exact(node, "attribute", term_of(each, node.text)) for each in paths]
        number = None if node.quoted or node.prefix else query_values.double(node.text)
        equal = [] if number is None else number_terms(paths, [number] * len(paths))
        schema = self.index.schema
        numbers = [tantivy.Query.term_query(schema, "number", term, "basic") for term in equal]
        return _filter(_either([*written, *numbers]))

    def _paths(self, path: str, place: int) -> list[str]:
        """Return the term paths of an attribute. A span attribute may also be one of its events."""
        if path.startswith("events.") and not self.analyzer.has_all_terms:
            raise QuerySyntaxError(place, f"attributes of events need {_REBUILT}")
        if path.startswith("attributes.") and self.analyzer.has_all_terms:
            return [path_term(path), path_term(f"events.{path.removeprefix('attributes.')}")]
        return [path_term(path)]

    def _range(self, node: ValueRange) -> tantivy.Query | None:
        field = node.field
        if field.startswith(OWNERS):
            return self._doubles(node)
        if field.startswith(ASSESSED):
            return self._assessed_range(node)
        if field not in ORDERED:
            _no_order(node)
        if field == "cost":
            return self._rows(cost_condition(node))
        if field == "start":
            return self._integers("start", starts(node, self.now_ns))
        if field == "duration":
            read, wanted = query_values.nanoseconds, "a duration, such as 2s, 1.5h or 300ms"
        else:
            read, wanted = query_values.number, "a number, such as 1000"
        low, high = (None if text is None else read(text) for text in (node.low, node.high))
        for text, value in ((node.low, low), (node.high, high)):
            if text is not None and value is None:
                raise QuerySyntaxError(node.place, f"{text!r} is not {wanted}")
        bounds = query_values.integers(low, high, node.with_low, node.with_high)
        if field in TABLE_NUMBERS:
            return self._rows("false" if bounds is None else f"{field} between {bounds[0]} and {bounds[1]}")
        return self._integers(field, bounds)

    def _integers(self, field: str, bounds: tuple[int, int] | None) -> tantivy.Query:
        if bounds is None:
            return tantivy.Query.empty_query()
        schema, kind = self.index.schema, tantivy.FieldType.Integer
        return _filter(tantivy.Query.range_query(schema, field, kind, *bounds))

    def _assessed_range(self, node: ValueRange) -> tantivy.Query | None:
        try:
            bounds = doubles_of(node)
        except QuerySyntaxError:
            if not node.written:
                raise
            return self._text(query_parser.text_of(node), node.field)  # a text that contains two dots

        def matches(value: Any) -> bool:
            return is_number(value) and bounds.holds(float(value))

        return self._assessed(node.field, node.place, matches)

    def _doubles(self, node: ValueRange) -> tantivy.Query:
        low, high = (None if text is None else query_values.double(text) for text in (node.low, node.high))
        for text, value in ((node.low, low), (node.high, high)):
            if text is not None and value is None:
                if node.written:  # a text that contains two dots
                    return self._attribute(query_parser.text_of(node), node.field)
                raise QuerySyntaxError(
                    node.place, f"{text!r} is not a number, and only numbers have an order; quote it after :"
                )
        bounds = [float("-inf") if low is None else low, float("inf") if high is None else high]
        opened, closed = "[" if node.with_low else "{", "]" if node.with_high else "}"
        ranges = [
            self.index.parse_query(f"number:{opened}{first} TO {last}{closed}", ["number"])
            for path in self._paths(node.field, node.place)
            for first, last in [number_terms([path] * 2, bounds)]
        ]
        return _filter(_either(ranges))

    def _exists(self, path: str, place: int, prefix: bool = False) -> tantivy.Query:  # noqa: PLR0911 - one for each kind
        if path in analyzers.PARTS:
            return _filter(self._exact(Text("has", path, place, prefix=prefix), "has", path_term(path)))
        if path.startswith(OWNERS):
            path_node = Text("has", path, place, prefix=prefix)
            return _filter(
                _either([self._exact(path_node, "has", each) for each in self._paths(path, place)])
            )
        if path in (*analyzers.TEXTS, "trace", "span"):
            return _filter(tantivy.Query.all_query())
        if path.startswith(ASSESSED) and not prefix:
            return self._assessed(path, place, lambda _value: True)
        if path == "type":
            return _filter(_either([type_query(self.index.schema, each) for each in get_args(SpanType)]))
        if path in TABLE_NUMBERS:
            return self._rows(f"{path} is not null")
        if path in FIELDS and path not in ("has", "like"):
            return _filter(tantivy.Query.exists_query(path))
        names = ", ".join([*analyzers.FACETS, "type", *ORDERED, *analyzers.PARTS])
        raise QuerySyntaxError(
            place,
            f"has: accepts {names}, feedback.NAME, or an attribute such as attributes.http.status_code, not {path!r}",
        )

    def _words(self, node: Text, names: Sequence[str]) -> tantivy.Query | None:
        """Return the query for a word or phrase in text fields."""
        of_words, of_ids = self._in_texts(node, names), self._of_ids(node)
        return of_words if of_ids is None else _either([of_words, of_ids])

    def _in_texts(self, node: Text, names: Sequence[str]) -> tantivy.Query:
        if (dropped := self.analyzer.dropped_from(node.text)) is not None:
            raise QuerySyntaxError(node.place, _not_indexed(dropped, self.analyzer))
        words = self.analyzer.words_wanted(node.text)
        if node.distance and not node.quoted and len(words) > 1:
            raise QuerySyntaxError(node.place, f"{node.text!r} is {len(words)} words, and ~ applies to one")
        queries = [
            tantivy.Query.boost_query(query, analyzers.BOOSTS[name]) if name in analyzers.BOOSTS else query
            for name in names
            for query in [self._match(name, node, words)]
        ]
        return _either(queries)

    def _match(self, name: str, node: Text, words: Sequence[Word]) -> tantivy.Query:
        schema, first, last = self.index.schema, words[0], words[-1]
        if len(words) == 1 and (node.prefix or (last.begins and not node.distance)):
            beginning = tantivy.Query.fuzzy_term_query(schema, name, last.written, 0, prefix=True)
            exact = tantivy.Query.fuzzy_term_query(schema, name, last.stem, 0)
            return beginning if last.stem.startswith(last.written) else _either([beginning, exact])
        if len(words) == 1 and node.distance and not node.quoted:
            return tantivy.Query.fuzzy_term_query(schema, name, last.stem, node.distance)
        if len(words) == 1:
            return tantivy.Query.term_query(schema, name, last.stem, "freq")
        terms: list[str | tuple[int, str]] = [(word.position - first.position, word.stem) for word in words]
        if not node.prefix and not any(word.begins for word in words):
            return tantivy.Query.phrase_query(schema, name, terms, node.distance)
        patterns: list[str | tuple[int, str]] = [
            (word.position - first.position, _pattern(word, begins=node.prefix and word is last))
            for word in words
        ]
        return tantivy.Query.regex_phrase_query(schema, name, patterns, node.distance)


def _not_indexed(dropped: str, analyzer: Analyzer) -> str:
    """Return the reason why the index does not hold a part of the query's text."""
    shown = dropped if len(dropped) <= limits.QUOTED_MAX_CHARS else dropped[: limits.QUOTED_MAX_CHARS] + "…"
    size = len(dropped.encode())
    if size >= limits.INDEX_WORD_MAX_BYTES and any(letter.isalnum() for letter in dropped):
        return (
            f"the word {shown!r} has {size} bytes, and words of {limits.INDEX_WORD_MAX_BYTES} bytes or more are not "
            f"indexed; leave it out{_advice(dropped, analyzer)}"
        )
    return f"the index has only letters and digits, so no word for {shown!r}; leave it out"


@dataclass(frozen=True, slots=True)
class PastedIds:
    """Ids of a trace and a span, as users paste them. One of them may be missing."""

    trace_id: str | None
    span_id: str | None


def ids_in(node: Text) -> PastedIds | None:
    """Return the ids in a word or phrase without a field: of a trace, a span, or both as W3C's traceparent."""
    if node.field is not None or node.prefix or node.distance:
        return None
    text = node.text.lower()
    for pattern in _IDS:
        if (match := pattern.fullmatch(text)) is not None:
            return PastedIds(match.groupdict().get("trace"), match.groupdict().get("span"))
    return None


def forms_of(value: str) -> list[str]:
    """Return a whole value in each Unicode form that it may have in the index."""
    if value.isascii():
        return [value]
    return list(dict.fromkeys([value, *(unicodedata.normalize(form, value) for form in ("NFC", "NFD"))]))


def _every(queries: Sequence[tantivy.Query]) -> tantivy.Query:
    if len(queries) == 1:
        return queries[0]
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, query) for query in queries])


def _advice(dropped: str, analyzer: Analyzer) -> str:
    hint = hint_of(analyzer, [dropped]) if has_unspaced(dropped) else None
    return "" if hint is None else f". Hint: {hint}"


def _boolean(clauses: Sequence[tuple[tantivy.Occur, tantivy.Query]]) -> tantivy.Query | None:
    return tantivy.Query.boolean_query(clauses) if clauses else None


def _either(queries: Sequence[tantivy.Query]) -> tantivy.Query:
    if len(queries) == 1:
        return queries[0]
    return tantivy.Query.boolean_query([(tantivy.Occur.Should, query) for query in queries])


def _filter(query: tantivy.Query) -> tantivy.Query:
    """Exclude a query from the score."""
    return tantivy.Query.const_score_query(query, 0.0)


def _pattern(word: Word, *, begins: bool) -> str:
    """Return the tantivy regular expression for a word of a phrase."""
    stem, written = (_SPECIAL.sub(r"\\\g<0>", text) for text in (word.stem, word.written))
    return f"(?:{written}.*|{stem})" if begins or word.begins else stem


def _no_field(node: Text | ValueRange, name: str) -> NoReturn:
    matches = difflib.get_close_matches(name.lower(), FIELDS, 1)
    hint = f"did you mean {matches[0]}? There are" if matches else "there are"
    raise QuerySyntaxError(
        node.place,
        f"there is no field {name!r}; {hint} {', '.join(FIELDS)}, attributes.{name} and resource.{name}; "
        f'to look for text with a colon in it, quote it: "{escaped(node.source)}"',
    )


def _no_order(node: ValueRange) -> NoReturn:
    if node.field not in FIELDS:
        _no_field(node, node.field)
    raise QuerySyntaxError(
        node.place,
        f"{node.field} is a text and has no order; write {node.field}:{node.low or node.high}, or quote it all. "
        f"{', '.join(ORDERED)}, attributes and feedback have one",
    )


def is_graded(node: Node) -> bool:
    """Whether a query has complete words or phrases, which give its hits many different scores."""
    texts = (leaf for leaf in leaves(node, wanted=True) if isinstance(leaf, Text))
    return any(
        leaf.field == "like"
        or (leaf.field in (None, *analyzers.TEXTS) and not leaf.prefix and (leaf.quoted or not leaf.distance))
        for leaf in texts
    )


def is_ranked(node: Node) -> bool:
    """Whether a query has words, which give its hits scores. All other clauses add nothing to a score."""
    return any(
        isinstance(leaf, Text) and leaf.field in (None, "like", *analyzers.TEXTS) for leaf in leaves(node)
    )


def texts_wanted(query: str) -> list[Text]:
    """Return the words and phrases to highlight in names and texts. Raises QueryError if the query does not parse."""
    try:
        clauses = list(leaves(tree(query), wanted=True))
    except QuerySyntaxError as error:
        raise refusal(query, error) from error
    return [leaf for leaf in clauses if isinstance(leaf, Text) and leaf.field in (None, *analyzers.TEXTS)]


def refusal(query: str, error: ValueError) -> QueryError:
    """Return a QueryError that names the problem of a query and its position."""
    shown = query if len(query) <= limits.QUOTED_MAX_CHARS else query[: limits.QUOTED_MAX_CHARS - 1] + "…"
    if isinstance(error, QuerySyntaxError):
        character, problem = error.place + 1, str(error)
    else:  # an error of tantivy: too many words begin with a prefix
        character, problem = None, f"{error}; write longer words before *"
    where = "" if character is None else f" at character {character}"
    return QueryError(f"the search {shown!r} cannot be read{where}: {problem}. Example: {EXAMPLE}", character)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Compiled query, restricted to the service and workspace of the search."""

    node: Node
    query: tantivy.Query | None
    """None if the query has no word; it then finds nothing."""
    is_ranked: bool
    """Whether the words of hits give them scores."""
    is_graded: bool
    """Whether scores distinguish hits, as those of words and phrases do. tantivy scores all matches of a prefix
    equally."""


@dataclass(frozen=True, slots=True)
class _Read:
    node: Node
    is_like: bool
    is_relative: bool
    is_looked_up: bool


@lru_cache(len(ANALYZERS) + len(EARLIER))
def grammar_of(analyzer: Analyzer) -> tantivy.Index:
    """Return an empty index for compiling queries. They are valid for all indexes with the same fields and analyzer."""
    index = tantivy.Index(analyzers.schema())
    analyzers.register_tokenizers(index, analyzer.tokenizer())
    index.config_reader(reload_policy="manual")
    return index


def asks_for_likeness(query: str) -> bool:
    """Whether a query has a `like:` clause. Such a query depends on the index. Raises QuerySyntaxError or QueryError if
    it does not parse."""
    return _read(query).is_like


def asks_for_lookups(query: str) -> bool:
    """Whether a query has clauses that depend on other spans, rows or assessments. Raises as `asks_for_likeness`."""
    return _read(query).is_looked_up


def prepared(
    query: str, service: str | None, analyzer: Analyzer, now_ns: int, workspace: str | None = None
) -> Prepared:
    """Compile a query that does not depend on the index, for one service and workspace. Raises QuerySyntaxError or
    QueryError if it does not parse or costs too much."""
    return _prepared(query, service, workspace, analyzer.name, now_ns if _read(query).is_relative else 0)


def prepared_in_index(
    query: str,
    service: str | None,
    analyzer: Analyzer,
    now_ns: int,
    workspace: str | None = None,
    *,
    lookups: Lookups,
) -> Prepared:
    """Compile a query with clauses that `lookups` answer. Raises QuerySyntaxError or QueryError if it does not parse or
    costs too much."""
    return _compiled(query, service, workspace, analyzer, now_ns, lookups)


@lru_cache(QUERIES_KEPT)
def _read(query: str) -> _Read:
    node = tree(query)
    is_looked_up = is_inherited(node) or reads_rows(node) or any(map(names_span, leaves(node)))
    return _Read(node, is_like(node), is_relative(node), is_looked_up)


def names_span(leaf: Clause) -> bool:
    """Whether a clause has a span id, which the index only has in parts."""
    if not isinstance(leaf, Text):
        return False
    ids = ids_in(leaf)
    return leaf.field == "span" or (ids is not None and ids.span_id is not None)


@lru_cache(QUERIES_KEPT)
def _prepared(query: str, service: str | None, workspace: str | None, text: str, now_ns: int) -> Prepared:
    return _compiled(query, service, workspace, get_analyzer(text), now_ns, NO_LOOKUPS)


def _compiled(
    query: str,
    service: str | None,
    workspace: str | None,
    analyzer: Analyzer,
    now_ns: int,
    lookups: Lookups,
) -> Prepared:
    node, grammar = _read(query).node, grammar_of(analyzer)
    compiled_query = compiled(grammar, node, now_ns, lookups, analyzer)
    for field, value in (("service", service), ("workspace", workspace)):
        if compiled_query is not None and value is not None:
            compiled_query = only_of(grammar, compiled_query, field, value)
            node = AllOf((node, Text(field, value.encode(errors="replace").decode(), 0, quoted=True)))
    return Prepared(node, compiled_query, is_ranked(node), is_graded(node))
