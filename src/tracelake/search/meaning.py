"""What of a query is meant, and what is a condition, for searches by meaning. Pure.

Words and phrases that stand beside each other on the highest level, without a field, are the text whose meaning is
looked for. All else is a condition, which the text index answers: fields, times, parentheses, what NOT or OR is
before, and words with * or ~.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracelake.search.grammar import AllOf, Boost, Everything, Node, Refused, Text


@dataclass(frozen=True, slots=True)
class Meant:
    """A query in its parts: a text to compare with, a span to compare with, and what hits must be."""

    text: str
    like: Text | None
    condition: Node | None


def meant(node: Node) -> Meant:
    """Return the parts of a query. Raises Refused where it names several things to compare with."""
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
        raise Refused(
            likes[-1].place, "a search by meaning compares with words or with one span, not with both"
        )
    condition = (
        None if not conditions else conditions[0] if len(conditions) == 1 else AllOf(tuple(conditions))
    )
    return Meant(" ".join(words), likes[0] if likes else None, condition)


def _parts(node: Node) -> Iterator[Node]:
    if isinstance(node, AllOf):
        for inner in node.nodes:
            yield from _parts(inner)
    else:
        yield node
