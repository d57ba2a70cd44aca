"""The query language: queries for tantivy, with errors that help, and the words to highlight.

refund policy            spans with both words, in name or text; refund OR policy: with one of them
"refund policy"          the phrase; "refund policy"~2 allows two words between
refund AND NOT airline   also - before a word, OR, parentheses
service:checkout name:chat status:error kind:client
*                        all
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import tantivy

from tracelake import limits
from tracelake._errors import QueryError
from tracelake.search import fields, grammar
from tracelake.search.grammar import AllOf, AnyOf, Atom, Boost, Node, Not

SEARCH_FIELDS: Final = ("service", "kind", "status", *fields.TEXTS)
EXAMPLE: Final = '"refund policy" AND service:airline-agent'

_APOSTROPHE: Final = re.compile(r"(?<=\w)'(?=\w)")
_PREFIX: Final = re.compile(r"(?<![^\s:\"'()\[\]{}])[^\s:\"'()\[\]{}]++(?=:)")
"""It begins where a word does: a long one without a colon is looked through once, and not from each character."""
_LONELY_OPERATOR: Final = re.compile(
    r"(?:^|\s)(?:AND|OR|NOT)\s*$|^\s*(?:AND|OR)(?:\s|$)|(?:AND|OR)\s+(?:AND|OR)\s"
)
_ANALYZER: Final = fields.words_analyzer()
_KEYWORD: Final = fields.keyword_analyzer()
_EMPTY: Final = "Query(EmptyQuery)"


def parse(index: tantivy.Index, query: str) -> tantivy.Query | None:
    """Return the query for an index, None for one without words. Raises QueryError where it does not parse."""
    try:
        return _compile(index, _tree(query))
    except ValueError as error:
        raise refusal(query, error) from error


def of_service(index: tantivy.Index, query: tantivy.Query, service: str) -> tantivy.Query:
    """Return the query in one service, its name in any case; scores stay as they are."""
    text = service.encode(errors="replace").decode()  # a lone surrogate is in no service
    named = tantivy.Query.term_query(index.schema, "service", "".join(_KEYWORD.analyze(text)))
    return tantivy.Query.boolean_query(
        [(tantivy.Occur.Must, query), (tantivy.Occur.Must, tantivy.Query.const_score_query(named, 0.0))]
    )


def _tree(query: str) -> Node:
    """Return the tree of a query. Raises ValueError, QueryError."""
    return grammar.parse(_checked(query))


def _compile(index: tantivy.Index, node: Node) -> tantivy.Query | None:
    """Return what finds the documents of a node, None where no word is in it, such as in `!!!`."""
    match node:
        case Atom(text):
            found = index.parse_query(
                text, list(fields.TEXTS), field_boosts=fields.BOOSTS, conjunction_by_default=True
            )
            return None if str(found) == _EMPTY else found
        case Boost(inner, factor):
            query = _compile(index, inner)
            return None if query is None else tantivy.Query.boost_query(query, factor)
        case Not(inner):
            return _conjunction(index, [Not(inner)])
        case AllOf(nodes):
            # Spans of services have a few words and agents' have hundreds: with OR by default, the short ones
            # with one word of the query would come first.
            return _conjunction(index, nodes)
        case AnyOf(nodes):
            queries = [query for inner in nodes if (query := _compile(index, inner)) is not None]
            return _boolean([(tantivy.Occur.Should, query) for query in queries])


def _conjunction(index: tantivy.Index, nodes: Sequence[Node]) -> tantivy.Query | None:
    clauses: list[tuple[tantivy.Occur, tantivy.Query]] = []
    for node in nodes:
        query = _compile(index, node.node if isinstance(node, Not) else node)
        if query is not None:
            clauses.append((tantivy.Occur.MustNot if isinstance(node, Not) else tantivy.Occur.Must, query))
    if clauses and all(occur == tantivy.Occur.MustNot for occur, _ in clauses):
        # tantivy finds nothing where it is only told what to leave out.
        everything = tantivy.Query.const_score_query(tantivy.Query.all_query(), 0.0)
        clauses.append((tantivy.Occur.Must, everything))
    return _boolean(clauses)


def _boolean(clauses: Sequence[tuple[tantivy.Occur, tantivy.Query]]) -> tantivy.Query | None:
    return tantivy.Query.boolean_query(clauses) if clauses else None


def terms(query: str) -> frozenset[str]:
    """Return the words and phrases that a query looks for in names and texts, for highlighting.

    They are lower case, the words of a phrase with one space between; excluded ones are not among them.
    Raises QueryError where the query does not parse.
    """
    try:
        literals = [
            literal for atom in _wanted(_tree(query)) for literal in _literals(tantivy.parse_query(atom))
        ]
    except ValueError as error:
        raise refusal(query, error) from error
    phrases = (" ".join(_ANALYZER.analyze(literal)) for literal in literals)
    return frozenset(phrase for phrase in phrases if phrase)


def _wanted(node: Node) -> Iterator[str]:
    """Yield the atoms that hits may contain."""
    match node:
        case Atom(text):
            yield text
        case Boost(inner, _) | Not(Not(inner)):
            yield from _wanted(inner)
        case AllOf(nodes) | AnyOf(nodes):
            for inner in nodes:
                yield from _wanted(inner)
        case Not(_):
            pass


def refusal(query: str, error: ValueError) -> QueryError:
    """Return the error that says what is wrong with a query that tantivy refused."""
    shown = query if len(query) <= limits.QUOTED_MAX_CHARS else query[: limits.QUOTED_MAX_CHARS - 1] + "…"
    return QueryError(
        f"the search {shown!r} cannot be read: {next(_reasons(query, str(error)))}. Example: {EXAMPLE}"
    )


def _checked(query: str) -> str:
    """Return the query as tantivy takes it: an apostrophe inside a word is not a quote."""
    if not query.strip():
        raise QueryError(
            f"the search is empty; give words to look for, or * for all spans. Example: {EXAMPLE}"
        )
    if len(query) > limits.QUERY_MAX_CHARS:
        raise QueryError(
            f"the search has {len(query)} characters, and the limit is {limits.QUERY_MAX_CHARS}; "
            f"look for its rarest words. Example: {EXAMPLE}"
        )
    return _APOSTROPHE.sub(r"\'", query)


def _literals(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words and phrases of tantivy's syntax tree of an atom."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if node["type"] == "bool":
            nodes += [clause for occur, clause in node["clauses"] if occur != "must_not"]
        elif node["type"] == "boost":
            nodes.append(node["underlying"])
        elif node["type"] == "literal" and node["field_name"] in (None, *fields.TEXTS):
            yield node["phrase"]
        elif node["type"] == "set" and node["field"] in (None, *fields.TEXTS):
            yield from node["elements"]


def _reasons(query: str, error: str) -> Iterator[str]:
    """Yield what may be wrong with a query, the likeliest first."""
    escaped = re.sub(r"\\.", "  ", query)
    unquoted = re.sub(r'"[^"]*"', lambda match: " " * len(match.group()), escaped)
    if escaped.count('"') % 2:
        place = escaped.rindex('"') + 1
        yield f'the double quote at character {place} has no partner; close it, or write \\" for it'
    for name in (found.group().lstrip("+-") for found in _PREFIX.finditer(unquoted)):
        if name not in SEARCH_FIELDS:
            yield (
                f"there is no field {name!r}, only {', '.join(SEARCH_FIELDS)}; "
                f"to look for text with a colon in it, quote it: {_quoted(query, name)}"
            )
    if unquoted.count("(") != unquoted.count(")"):
        yield "a parenthesis has no partner; close it, or put the text in double quotes"
    if "nested" in error:
        yield f"it is nested more than {limits.QUERY_NESTING_MAX} deep; leave parentheses out"
    if _LONELY_OPERATOR.search(unquoted):
        yield "AND and OR need words on both sides, and NOT after it; as words, they are lower case"
    if "fast field" in error:
        yield "a field followed by * alone is not supported; name a word after the colon"
    if "Regex" in error:
        yield "regular expressions are not supported; put text with slashes in double quotes"
    yield f"put text with special characters in double quotes: {_quoted_whole(query)}"


def _quoted(query: str, name: str) -> str:
    """Return the query with the word that begins with `name:` in quotes."""
    return re.sub(re.escape(name) + r":[^\s\"]*", lambda match: f'"{match.group()}"', query, count=1)


def _quoted_whole(query: str) -> str:
    words = re.sub(r'["\\]', " ", query).split()
    return '"' + " ".join(words)[: limits.QUOTED_MAX_CHARS] + '"'
