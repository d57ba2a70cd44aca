"""The query language, which is tantivy's: parsing it, with errors that help, and the words to highlight.

refund policy            spans with both words, in name or text; refund OR policy: with one of them
"refund policy"          the phrase; "refund policy"~2 allows two words between
refund AND NOT airline   also + and - before a word, OR, parentheses
service:checkout name:chat status:error kind:client
*                        all
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import tantivy

from tracelake import limits
from tracelake._errors import QueryError
from tracelake.search import fields

EXAMPLE: Final = '"refund policy" AND service:airline-agent'

_APOSTROPHE: Final = re.compile(r"(?<=\w)'(?=\w)")
_PREFIX: Final = re.compile(r"[^\s:\"'()\[\]{}]+(?=:)")
_LONELY_OPERATOR: Final = re.compile(
    r"(?:^|\s)(?:AND|OR|NOT)\s*$|^\s*(?:AND|OR)(?:\s|$)|(?:AND|OR)\s+(?:AND|OR)\s"
)
_ANALYZER: Final = fields.words_analyzer()


def parse(index: tantivy.Index, query: str) -> tantivy.Query:
    """Return the query for an index. Raises QueryError where it does not parse."""
    try:
        return index.parse_query(
            _checked(query),
            list(fields.DEFAULT_FIELDS),
            field_boosts=fields.BOOSTS,
            # Spans of services have a few words and agents' have hundreds: with OR by default, the short ones
            # with one word of the query would come first.
            conjunction_by_default=True,
        )
    except ValueError as error:
        raise refusal(query, error) from error


def terms(query: str) -> frozenset[str]:
    """Return the words and phrases that a query looks for in names and texts, for highlighting.

    They are lower case, the words of a phrase with one space between; excluded ones are not among them.
    Raises QueryError where the query does not parse.
    """
    try:
        tree = tantivy.parse_query(_checked(query))
    except ValueError as error:
        raise refusal(query, error) from error
    phrases = (" ".join(_ANALYZER.analyze(literal)) for literal in _literals(tree))
    return frozenset(phrase for phrase in phrases if phrase)


def refusal(query: str, error: ValueError) -> QueryError:
    """Return the error that says what is wrong with a query that tantivy refused."""
    shown = query if len(query) <= 100 else query[:99] + "…"
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


def _literals(tree: dict[str, Any]) -> Iterator[str]:
    """Yield the words and phrases of a syntax tree, which may be deep, that hits may contain."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if node["type"] == "bool":
            nodes += [clause for occur, clause in node["clauses"] if occur != "must_not"]
        elif node["type"] == "boost":
            nodes.append(node["underlying"])
        elif node["type"] == "literal" and node["field_name"] in (None, *fields.DEFAULT_FIELDS):
            yield node["phrase"]
        elif node["type"] == "set" and node["field"] in (None, *fields.DEFAULT_FIELDS):
            yield from node["elements"]


def _reasons(query: str, error: str) -> Iterator[str]:
    """Yield what may be wrong with a query, the likeliest first."""
    escaped = re.sub(r"\\.", "  ", query)
    unquoted = re.sub(r'"[^"]*"', lambda match: " " * len(match.group()), escaped)
    if escaped.count('"') % 2:
        place = escaped.rindex('"') + 1
        yield f'the double quote at character {place} has no partner; close it, or write \\" for it'
    for name in (found.group().lstrip("+-") for found in _PREFIX.finditer(unquoted)):
        if name not in fields.SEARCH_FIELDS:
            yield (
                f"there is no field {name!r}, only {', '.join(fields.SEARCH_FIELDS)}; "
                f"to look for text with a colon in it, quote it: {_quoted(query, name)}"
            )
    if unquoted.count("(") != unquoted.count(")"):
        yield "a parenthesis has no partner; close it, or put the text in double quotes"
    if "Only excluding" in error:
        yield f"it only says what to leave out; say of what: * {query}"
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
    return '"' + " ".join(words)[:100] + '"'
