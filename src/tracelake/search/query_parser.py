"""Parser of the query language. query_compiler.py and query_values.py interpret the values of each field.

    query        = alternatives { alternatives }          all of them: adjacent words mean AND
    alternatives = conjunction { OR conjunction }
    conjunction  = operand { AND operand }
    operand      = [ NOT | - | + ] ( [ field ":" ] "(" query ")" [ boost ] | clause [ boost ] )
    clause       = [ field ":" ] text | field ( ">" | ">=" | "<" | "<=" ) word | [ field ":" ] word ".." word
                 | "has:" path [ "*" ] | "last" number unit | "*"
    text         = word [ "*" | "~" digit ] | '"' anything '"' [ "~" digits ] [ "*" ]
    field        = letter { letter | digit | "_" | "." | "-" | "/" } | path
    path         = ( "attributes" | "events" | "resource" | "feedback" | "score" | "expectation" ) "." '"' anything '"'
    boost        = "^" number

A word contains no space, quote or parenthesis. A backslash makes the next character literal.

The module also adds clauses to a query and removes them, as facets in the UI do, and splits queries for semantic
search. Adjacent top-level words and phrases without a field are the text to compare by meaning. Everything else is a
condition, which the text index answers: fields, times, parentheses, operands of NOT or OR, and words with * or ~.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Final, TypeAlias

from tracelake import limits


class QuerySyntaxError(ValueError):
    """Syntax error of a query at a character position, counted from 0."""

    def __init__(self, place: int, problem: str) -> None:
        super().__init__(problem)
        self.place = place


@dataclass(frozen=True, slots=True)
class Text:
    """Query node: a word, a phrase, or the value of a field."""

    field: str | None
    text: str
    place: int
    quoted: bool = False
    prefix: bool = False
    distance: int = 0
    """Maximum edit distance of a word, or number of words allowed between those of a phrase."""
    source: str = dataclass_field(default="", compare=False)
    """The source text of the clause; empty if it was not parsed from a query."""


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Query node: matches values between two bounds. None is an open bound."""

    field: str
    low: str | None
    high: str | None
    place: int
    with_low: bool = True
    with_high: bool = True
    written: str = ""
    """The source of the value `low..high`, which may be a text (see `text_of`)."""
    source: str = dataclass_field(default="", compare=False)
    """The source text of the clause; empty if it was not parsed from a query."""


@dataclass(frozen=True, slots=True)
class Last:
    """Query node: matches spans that began within this period before now."""

    text: str
    place: int


@dataclass(frozen=True, slots=True)
class Everything:
    """Query node: matches all spans."""


@dataclass(frozen=True, slots=True)
class Not:
    """Query node: matches the spans that its node does not match."""

    node: Node


@dataclass(frozen=True, slots=True)
class AllOf:
    """Query node: matches the spans that all of its nodes match."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Query node: matches the spans that at least one of its nodes matches."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Boost:
    """Query node: matches the same spans as its node, and multiplies their score by `factor`."""

    node: Node
    factor: float


Clause: TypeAlias = Text | ValueRange | Last | Everything
Node: TypeAlias = Clause | Not | AllOf | AnyOf | Boost

INDEX_NUMBERS: Final = ("start", "duration", "tokens", "input_tokens", "output_tokens")
"""Fields of numbers and times in the index."""
TABLE_NUMBERS: Final = (
    *("cost", "total_tokens", "cached_input_tokens", "cache_write_tokens", "reasoning_tokens"),
)
"""Fields of numbers that are read from the columns of the same name in table `spans`."""
ORDERED: Final = (*INDEX_NUMBERS, *TABLE_NUMBERS)
"""Fields of numbers and times, which may precede `>`."""
ASSESSMENTS: Final = {"feedback.": "feedback", "score.": "feedback", "expectation.": "expectation"}
"""Prefixes of fields that are the assessments of a trace by name, each with the kind of assessment."""
ASSESSED: Final = tuple(ASSESSMENTS)
_SPACE: Final = re.compile(r"\s*")
_OPERATOR: Final = re.compile(r'(AND|OR|NOT)(?=[\s("]|$)')
_SIGN: Final = re.compile(r"[+-](?=[^\s)])")
_OWNER: Final = "(?:attributes|events|resource|feedback|score|expectation)"
QUOTED_PATH: Final = rf"""{_OWNER}\."(?:\\.|[^"\\])*\""""
"""Regular expression for a path with quotes around its key."""
_PATH: Final = re.compile(rf"({QUOTED_PATH})(\*?)", re.DOTALL)
_FIELD: Final = re.compile(rf"({QUOTED_PATH}|[A-Za-z_][\w./-]*+)(:?>=|:?<=|:?>|:?<|:)", re.DOTALL)
_SPACED_COMPARISON: Final = re.compile(
    rf"({QUOTED_PATH}|{_OWNER}\.[\w./-]+|{'|'.join(ORDERED)})\s+([<>]=?)\s*[\d.+-]",
    re.DOTALL,
)
"""Comparisons with spaces, which would otherwise be parsed as words."""
_PHRASE: Final = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
_WORD: Final = re.compile(r'(?:\\.|[^\s"()\\])+', re.DOTALL)
_SLOP: Final = re.compile(r"~(\w*)")
_BOOST: Final = re.compile(r"\^(\d{1,6}(?:\.\d{0,6})?)(?=[\s)]|$)")
_BOOSTED: Final = re.compile(r"((?:\\.|[^\\])+)\^(\d{1,6}(?:\.\d{0,6})?)", re.DOTALL)
_FUZZY: Final = re.compile(r"((?:\\.|[^\\])+)~(\w*)", re.DOTALL)
_LAST: Final = re.compile(r"last\s+(\d+\s?[a-z]+)(?=[\s)]|$)")
_DATES: Final = re.compile(r"(?:\d{4}-\d{2}\S*)?\.\.(?:\d{4}-\d{2}\S*)?")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_ENDS: Final = re.compile(r"(?=[\s)]|$)")

OWNERS: Final = ("attributes.", "events.", "resource.")
"""Prefixes of attribute fields."""


def parse(query: str) -> Node:
    """Return the tree of a query. Raises QuerySyntaxError if it does not parse or is nested too deeply."""
    parser = _Parser(query)
    node = parser.query(None, 0)
    if not parser.at_end():
        raise QuerySyntaxError(parser.place, "this parenthesis is unmatched; open one before it, or quote it")
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self.place = 0

    def at_end(self) -> bool:
        self._take(_SPACE)
        return self.place == len(self._text)

    def query(self, field: str | None, depth: int) -> Node:
        """Parse up to the end or a closing parenthesis."""
        nodes = [self._alternatives(field, depth)]
        while not self.at_end() and self._text[self.place] != ")":
            nodes.append(self._alternatives(field, depth))
        return nodes[0] if len(nodes) == 1 else AllOf(tuple(nodes))

    # These two share no helper, because fewer calls per level keep Python's recursion limit further away.
    def _alternatives(self, field: str | None, depth: int) -> Node:
        nodes = [self._conjunction(field, depth)]
        while self._operator("OR"):
            nodes.append(self._conjunction(field, depth))
        return nodes[0] if len(nodes) == 1 else AnyOf(tuple(nodes))

    def _conjunction(self, field: str | None, depth: int) -> Node:
        nodes = [self._operand(field, depth)]
        while self._operator("AND"):
            nodes.append(self._operand(field, depth))
        return nodes[0] if len(nodes) == 1 else AllOf(tuple(nodes))

    def _operand(self, field: str | None, depth: int) -> Node:
        if depth > limits.QUERY_NESTING_MAX:
            raise QuerySyntaxError(
                self.place,
                f"it is nested more than {limits.QUERY_NESTING_MAX} levels deep; remove parentheses",
            )
        if self._operator("NOT"):
            return Not(self._operand(field, depth + 1))
        if (match := self._take(_SIGN)) is not None:
            node = self._operand(field, depth + 1)
            return node if match.group() == "+" else Not(node)
        if _OPERATOR.match(self._text, self.place) or self.at_end() or self._text[self.place] == ")":
            raise QuerySyntaxError(
                self.place,
                "a word is missing here: AND and OR need one on both sides, NOT one after it, parentheses one "
                "inside; to search for the words and, or, not, write them in lower case",
            )
        if self._text[self.place] == "(":
            return self._group(field, depth)
        return self._with_source(self._clause(field, depth))

    def _with_source(self, node: Node) -> Node:
        """Return a clause that was just parsed, with its source text."""
        match node:
            case Boost(inner, factor):
                return Boost(self._with_source(inner), factor)
            case Text() | ValueRange() if not node.source:
                return replace(node, source=self._text[node.place : self.place])
            case _:
                return node

    def _group(self, field: str | None, depth: int) -> Node:
        opened = self.place
        self.place += 1
        node = self.query(field, depth + 1)
        if self._text[self.place : self.place + 1] != ")":
            raise QuerySyntaxError(opened, "this parenthesis is unmatched; close it, or quote it")
        self.place += 1
        return self._boosted(node)

    def _boosted(self, node: Node) -> Node:
        boost = self._take(_BOOST)
        return node if boost is None else Boost(node, float(boost.group(1)))

    def _clause(self, field: str | None, depth: int) -> Node:
        start = self.place
        if field is None and (last := self._take(_LAST)) is not None:
            return Last(last.group(1), start)
        if field is None and (spaced := _SPACED_COMPARISON.match(self._text, start)) is not None:
            raise QuerySyntaxError(
                spaced.start(2),
                f"a comparison has no spaces: write {spaced.group(1)}{spaced.group(2)} directly followed by the "
                "value; quote the words to search for them",
            )
        match = self._take(_FIELD)
        if match is None:
            return self._value(field, start)
        name, operator = name_of(match.group(1)), match.group(2).lstrip(":")
        if not operator:
            if self._text[self.place : self.place + 1] == "(":
                return self._group(name, depth)
            if self._take(_ENDS) is not None:
                raise QuerySyntaxError(
                    self.place,
                    f"a value is missing after {match.group()!r}; write it there, without a space",
                )
            return self._value(name, start)
        word = self._take(_WORD)
        if word is None:
            raise QuerySyntaxError(self.place, f"a number or time is missing after {match.group()!r}")
        value = plain(word.group())
        if operator.startswith(">"):
            return ValueRange(name, value, None, start, with_low=operator == ">=")
        return ValueRange(name, None, value, start, with_high=operator == "<=")

    def _value(self, field: str | None, start: int) -> Node:
        if self._text[self.place] == '"':
            return self._phrase(field, start)
        if field == "has" and (path := self._take(_PATH)) is not None:
            return Text(field, name_of(path.group(1)), start, quoted=True, prefix=bool(path.group(2)))
        match = self._take(_WORD)
        if match is None:
            raise QuerySyntaxError(self.place, "a backslash ends it; write it twice, or quote the text")
        word = match.group()
        if (boost := _BOOSTED.fullmatch(word)) is not None:
            return Boost(_word(field, boost.group(1), start), float(boost.group(2)))
        return _word(field, word, start)

    def _phrase(self, field: str | None, start: int) -> Node:
        match = self._take(_PHRASE)
        if match is None:
            raise QuerySyntaxError(
                self.place, 'this double quote has no partner; close it, or write \\" for it'
            )
        slop = self._take(_SLOP)
        digits = "0" if slop is None else slop.group(1)
        if not digits.isdecimal() or len(digits) > 3 or int(digits) > limits.QUERY_SLOP_MAX:
            raise QuerySyntaxError(
                match.end(),
                f'after ~ write how many words may be between, up to {limits.QUERY_SLOP_MAX}: "a phrase"~2',
            )
        prefix = self._text.startswith("*", self.place)
        self.place += prefix
        text = plain(match.group(1))
        return self._boosted(Text(field, text, start, quoted=True, prefix=prefix, distance=int(digits)))

    def _operator(self, word: str) -> bool:
        """Skip this operator if it comes next after white space; return whether it did."""
        self._take(_SPACE)
        match = _OPERATOR.match(self._text, self.place)
        if match is None or match.group(1) != word:
            return False
        self.place = match.end()
        self._take(_SPACE)
        return True

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self.place)
        if match is not None:
            self.place = match.end()
        return match


def name_of(field: str) -> str:
    """Return the name of a field without quotes around an attribute's key."""
    owner, quote, key = field.partition('"')
    return f"{owner}{plain(key[:-1])}" if quote else field


def _word(field: str | None, word: str, start: int) -> Clause:
    """Return the clause of an unquoted word, without field and boost."""
    if word == "*" and field is None:
        return Everything()
    low, dots, high = word.partition("..")
    if dots and word.strip(".") and (_DATES.fullmatch(word) if field is None else _has_order(field)):
        bounds = [None if bound in ("", "*") else plain(bound) for bound in (low, high)]
        return ValueRange(field or "start", bounds[0], bounds[1], start, written=word)
    return _text(field, word, start)


def _has_order(field: str) -> bool:
    return field in ORDERED or field.startswith((*OWNERS, *ASSESSED))


def text_of(node: ValueRange) -> Text:
    """Return a range whose ends have no order, such as `../lib*`, as a text. Raises QuerySyntaxError if it cannot be
    read as a text."""
    return _text(node.field, node.written, node.place)


def _text(field: str | None, word: str, start: int) -> Text:
    if (fuzzy := _FUZZY.fullmatch(word)) is not None:
        if fuzzy.group(2) not in ("1", "2"):
            raise QuerySyntaxError(start, "after ~ write how many letters may differ, 1 or 2: refnd~1")
        return Text(field, plain(fuzzy.group(1)), start, distance=int(fuzzy.group(2)))
    bare = _ESCAPED.sub("", word)
    prefix = bare.endswith("*")
    if "*" in bare[: len(bare) - prefix]:
        raise QuerySyntaxError(
            start, "* is allowed only at the end of a word, for any letters that follow: ref*"
        )
    return Text(field, plain(word[: len(word) - prefix]), start, prefix=prefix)


def plain(text: str) -> str:
    """Return a text without its backslashes."""
    return _ESCAPED.sub(r"\1", text)


_FIELDS: Final = {"day": "start"}
"""Query fields of facets whose names differ."""
_PLAIN_VALUE: Final = re.compile(r"[\w/@+-][\w./@:+-]*")


def written(value: str) -> str:
    """Return a value in query syntax, in quotes if necessary."""
    if _PLAIN_VALUE.fullmatch(value) and ".." not in value:
        return value
    return f'"{escaped(value)}"'


def escaped(text: str) -> str:
    """Escape a text for use between quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def clause_of(facet: str, value: str) -> str:
    """Return the clause that finds the spans that a facet counts for a value."""
    return f"{_FIELDS.get(facet, facet)}:{written(value)}"


def narrowed(query: str, clause: str) -> str:
    """Add a clause to a query.

    Adjacent parts must all match, whatever operators they contain, so no parentheses are needed.
    """
    query = query.strip()
    return clause if query in ("", "*") else f"{query} {clause}"


def add_clause(query: str, clauses: Sequence[str]) -> str:
    """Add clauses to a query. A query that does not parse is returned as it is, because its error has positions in
    it."""
    try:
        parse(query.strip() or "*")
    except QuerySyntaxError:
        return query
    for clause in clauses:
        query = narrowed(query, clause)
    return query


def widened(query: str, clauses: Sequence[str]) -> dict[str, str]:
    """For each clause that is a top-level condition of the query, return the query without that clause. The result is
    keyed by clause."""
    try:
        node = parse(query)
    except QuerySyntaxError:
        return {}
    wider: dict[str, str] = {}
    for part in node.nodes if isinstance(node, AllOf) else (node,):
        if not isinstance(part, Text) or part.field is None:
            continue
        for clause in clauses:
            stop = part.place + len(clause)
            if not query.startswith(clause, part.place) or query[stop : stop + 1].strip():
                continue
            remaining = f"{query[: part.place].strip()} {query[stop:].strip()}".strip() or "*"
            with suppress(QuerySyntaxError):  # an operator was adjacent to the clause
                parse(remaining)
                wider[clause] = remaining
    return wider


@dataclass(frozen=True, slots=True)
class SemanticQuery:
    """Parts of a semantic query: a text or a span to compare with, and the condition for hits."""

    text: str
    like: Text | None
    condition: Node | None


def split_semantic(node: Node) -> SemanticQuery:
    """Split a query for semantic search. Raises QuerySyntaxError if it names several things to compare with."""
    words: list[str] = []
    likes: list[Text] = []
    conditions: list[Node] = []
    for part in _parts(node):
        plain = part.node if isinstance(part, Boost) else part
        is_word = isinstance(plain, Text) and not plain.prefix and (plain.quoted or not plain.distance)
        if is_word and isinstance(plain, Text) and plain.field is None:
            words.append(plain.text)
        elif is_word and isinstance(plain, Text) and plain.field == "like":
            likes.append(plain)
        elif not isinstance(part, Everything):
            conditions.append(part)
    if likes and (words or len(likes) > 1):
        raise QuerySyntaxError(
            likes[-1].place, "a search by meaning compares with words or with one span, not with both"
        )
    condition = (
        None if not conditions else conditions[0] if len(conditions) == 1 else AllOf(tuple(conditions))
    )
    return SemanticQuery(" ".join(words), likes[0] if likes else None, condition)


def _parts(node: Node) -> Iterator[Node]:
    if isinstance(node, AllOf):
        for inner in node.nodes:
            yield from _parts(inner)
    else:
        yield node
