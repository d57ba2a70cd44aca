"""Queries made of others: narrowed by a value, as who clicks one wants, and wide again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tracelake.search.grammar import AllOf, Refused, Text, parse

_FIELDS: Final = {"day": "start"}
"""The fields of facets that have another name."""
_PLAIN_VALUE: Final = re.compile(r"[\w/@+-][\w./@:+-]*")


def written(value: str) -> str:
    """Return a value as it is written in a query: in quotes where it needs some."""
    if _PLAIN_VALUE.fullmatch(value) and ".." not in value:
        return value
    return f'"{escaped(value)}"'


def escaped(text: str) -> str:
    """Return a text as it stands between quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def clause_of(facet: str, value: str) -> str:
    """Return the clause that finds the spans which a facet counts under a value."""
    return f"{_FIELDS.get(facet, facet)}:{written(value)}"


def narrowed(query: str, clause: str) -> str:
    """Return a query of what one finds and the clause does, too.

    What stands beside each other must all match, whatever operators are in it: nothing needs parentheses.
    """
    query = query.strip()
    return clause if query in ("", "*") else f"{query} {clause}"


def widened(query: str, clauses: Sequence[str]) -> dict[str, str]:
    """Return, by clause, the query without it: of these clauses those that narrow all of the query."""
    try:
        node = parse(query)
    except Refused:
        return {}
    wider: dict[str, str] = {}
    for part in node.nodes if isinstance(node, AllOf) else (node,):
        if not isinstance(part, Text) or part.field is None:
            continue
        for clause in clauses:
            stop = part.place + len(clause)
            if not query.startswith(clause, part.place) or query[stop : stop + 1].strip():
                continue
            rest = f"{query[: part.place].strip()} {query[stop:].strip()}".strip() or "*"
            with suppress(Refused):  # an operator stood beside the clause
                parse(rest)
                wider[clause] = rest
    return wider
