"""The grammar of queries: what AND, OR, NOT, parentheses and spaces make of words, phrases and fields.

query        = alternatives { alternatives }          all of them: words beside each other mean AND
alternatives = conjunction { OR conjunction }
conjunction  = operand { AND operand }
operand      = [ NOT | - | + ] ( "(" query ")" | field ":" "(" query ")" | atom )

tantivy's own grammar keeps neither groups apart that stand beside each other, nor finds what a NOT inside of
parentheses leaves over; so it is asked for atoms only: a word, a phrase, a field with its value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from tracelake import limits


@dataclass(frozen=True, slots=True)
class Atom:
    """A word, phrase, set or range, with its field if it has one, as tantivy reads it."""

    text: str


@dataclass(frozen=True, slots=True)
class Not:
    """What the node does not find."""

    node: Node


@dataclass(frozen=True, slots=True)
class AllOf:
    """What every node finds."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """What at least one node finds."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Boost:
    """What the node finds, weighing more or less."""

    node: Node
    factor: float


Node: TypeAlias = Atom | Not | AllOf | AnyOf | Boost

_SPACE: Final = re.compile(r"\s*")
_OPERATOR: Final = re.compile(r"(AND|OR|NOT)(?=[\s(]|$)")
_SIGN: Final = re.compile(r"[+-](?=[^\s)])")
_GROUP: Final = re.compile(r"(?:([^\s:\"'()\[\]{}^+-][^\s:\"'()\[\]{}^]*):)?\(")
_GROUP_BOOST: Final = re.compile(r"\^(\d{1,6}(?:\.\d{0,6})?)")
_ATOM: Final = re.compile(
    r"""
    (?P<field> [^\s:"'()\[\]{}^]+ : \s* )?
    (?: "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*'                   # a phrase
      | IN \s* \[ (?:"(?:\\.|[^"\\])*" | [^\]"])* \]            # a set
      | [\[{] [^\]}]* [\]}]                                     # a range
      | (?:\\.|[^\s:"'()\[\]{}^\\])+                            # a word
    )
    (?: ~\d+ )? \*? (?: \^\d+(?:\.\d*)? )?
    """,
    re.VERBOSE | re.DOTALL,
)


def parse(query: str) -> Node:
    """Return the tree of a query. Raises ValueError for what is none, or is nested too deep."""
    parser = _Parser(query)
    node = parser.query("", 0)
    if not parser.at_end():
        raise ValueError(f"nothing can begin at character {parser.place + 1}")
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self.place = 0

    def at_end(self) -> bool:
        self._take(_SPACE)
        return self.place == len(self._text)

    def query(self, field: str, depth: int) -> Node:
        """Read up to the end, or a parenthesis that closes."""
        nodes = [self._alternatives(field, depth)]
        while not self.at_end() and self._text[self.place] != ")":
            nodes.append(self._alternatives(field, depth))
        return nodes[0] if len(nodes) == 1 else AllOf(tuple(nodes))

    def _alternatives(self, field: str, depth: int) -> Node:
        nodes = [self._conjunction(field, depth)]
        while self._operator("OR"):
            nodes.append(self._conjunction(field, depth))
        return nodes[0] if len(nodes) == 1 else AnyOf(tuple(nodes))

    def _conjunction(self, field: str, depth: int) -> Node:
        nodes = [self._operand(field, depth)]
        while self._operator("AND"):
            nodes.append(self._operand(field, depth))
        return nodes[0] if len(nodes) == 1 else AllOf(tuple(nodes))

    def _operand(self, field: str, depth: int) -> Node:
        if depth > limits.QUERY_NESTING_MAX:
            raise ValueError("nested too deep")
        if self._operator("NOT"):
            return Not(self._operand(field, depth + 1))
        if (found := self._take(_SIGN)) is not None:
            node = self._operand(field, depth + 1)
            return node if found.group() == "+" else Not(node)
        if (found := self._take(_GROUP)) is not None:
            return self._group(found.group(1) or field, depth)
        found = None if _OPERATOR.match(self._text, self.place) else self._take(_ATOM)
        if found is None:
            raise ValueError(f"words are missing at character {self.place + 1}")
        text = found.group()
        if not text.strip("+-"):
            return Atom(f'"{text}"')  # a dash between words, which tantivy would take for a sign
        return Atom(text if found["field"] or not field else f"{field}:{text}")

    def _group(self, field: str, depth: int) -> Node:
        node = self.query(field, depth + 1)
        if self._text[self.place : self.place + 1] != ")":
            raise ValueError("a parenthesis is not closed")
        self.place += 1
        boost = self._take(_GROUP_BOOST)
        return node if boost is None else Boost(node, float(boost.group(1)))

    def _operator(self, word: str) -> bool:
        """Step over this operator, if it is what comes next after white space."""
        self._take(_SPACE)
        found = _OPERATOR.match(self._text, self.place)
        if found is None or found.group(1) != word:
            return False
        self.place = found.end()
        self._take(_SPACE)
        return True

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self.place)
        if found is not None:
            self.place = found.end()
        return found
