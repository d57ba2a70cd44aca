"""MLflow's language for filters of traces, as its client 3.18 sends it: comparisons, all of which must hold. Pure.

    attributes.status = 'OK' AND tags.team IN ('a', 'b') AND trace.timestamp_ms > 1700000000000

| identifier | keys |
|---|---|
| none, `attribute(s)`, `trace` | those of `NUMBERS` and `TEXTS` |
| `tag(s)` | of any trace tag |
| `metadata`, `request_metadata` | `mlflow.trace.session`, `mlflow.trace.user` |
| `span` | `name`, `status` |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from tracelake._errors import QueryError
from tracelake.limits import FILTER_CONDITIONS_MAX, FILTER_MAX_CHARS, FILTER_VALUES_MAX, QUOTED_MAX_CHARS

Value: TypeAlias = str | int | float | tuple[str, ...] | None
NUMBERS: Final = {
    "timestamp_ms": "timestamp_ms",
    "timestamp": "timestamp_ms",
    "execution_time_ms": "execution_time_ms",
    "execution_time": "execution_time_ms",
    "end_time_ms": "end_time_ms",
    "end_time": "end_time_ms",
}
"""Keys of numbers, with the name that each goes by here."""
TEXTS: Final = {
    **{key: key for key in ("request_id", "status", "name", "client_request_id")},
    "trace_id": "request_id",
}
METADATA: Final = {"mlflow.trace.session": "session_id", "mlflow.trace.user": "user_id"}
ALIASES: Final = {
    **dict.fromkeys(("", "attribute", "attributes", "trace"), "attribute"),
    **dict.fromkeys(("tag", "tags"), "tag"),
    **dict.fromkeys(("metadata", "request_metadata"), "metadata"),
    "span": "span",
}
"""What a name before the dot is of; none is an attribute, too."""
_OF_NUMBERS: Final = frozenset(("=", "!=", "<", "<=", ">", ">="))
_OF_TEXTS: Final = frozenset(("=", "!=", "LIKE", "ILIKE", "IN", "NOT IN"))
_OF_KEYS: Final = _OF_TEXTS | {"IS NULL", "IS NOT NULL"}
# Numbers of up to 18 digits are ones that both databases hold.
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<number>[-+]?\d{1,18}(?:\.\d{1,18})?(?![\w.]))"""
    r"""|(?P<name>[A-Za-z_][\w\-/]*(?:\.(?:[\w\-/]+|`[^`]*`|"[^"]*"))*)|(?P<sign><=|>=|!=|=|<|>|\(|\)|,))""",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class FilterCondition:
    """One comparison."""

    kind: str
    """attribute | tag | metadata | span"""
    key: str
    comparator: str
    value: Value


def parse_filter(text: str | None) -> tuple[FilterCondition, ...]:
    """Return the conditions of a filter. Raises QueryError, which says what is not understood, and what would be."""
    text = text or ""
    if len(text) > FILTER_MAX_CHARS or "\0" in text:
        raise QueryError(
            f"a filter has up to {FILTER_MAX_CHARS:,} characters, and no NUL; this one has {len(text):,}."
        )
    tokens = _Tokens(text)
    conditions = list[FilterCondition]()
    while tokens.left:
        if conditions:
            tokens.word("AND")
        if len(conditions) == FILTER_CONDITIONS_MAX:
            raise QueryError(f"a filter has up to {FILTER_CONDITIONS_MAX} conditions.")
        conditions.append(_condition(tokens))
    return tuple(conditions)


class _Tokens:
    """What is left of a filter."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.left: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.wrong(text[at:].strip())
            self.left.append((str(match.lastgroup), match[0].strip()))
            at = match.end()

    def wrong(self, what: str) -> QueryError:
        """Return the error for something that does not belong there."""
        return QueryError(
            f"the filter is not understood at {what[:QUOTED_MAX_CHARS]!r}: write comparisons with AND between, such as "
            "attributes.status = 'OK' AND tags.team = 'a' AND timestamp_ms > 1700000000000."
        )

    def next(self, *kinds: str) -> str:
        """Take a token of these kinds."""
        if not self.left or self.left[0][0] not in kinds:
            raise self.wrong(self.left[0][1] if self.left else "its end")
        return self.left.pop(0)[1]

    def is_word(self, word: str) -> bool:
        """Whether a word is next; it is taken then."""
        if self.left and self.left[0][1].upper() == word:
            self.left.pop(0)
            return True
        return False

    def word(self, word: str) -> None:
        """Take a word."""
        if not self.is_word(word):
            raise self.wrong(self.left[0][1] if self.left else "its end")


def _condition(tokens: _Tokens) -> FilterCondition:
    name = tokens.next("name")
    kind, key = _identified(name)
    comparator = _comparator(tokens)
    number = kind == "attribute" and key in NUMBERS.values()
    allowed = _OF_NUMBERS if number else _OF_KEYS if kind in ("tag", "metadata") else _OF_TEXTS
    if comparator not in allowed:
        raise QueryError(f"{name} can be compared by {', '.join(sorted(allowed))}, and not by {comparator}.")
    if comparator.startswith("IS "):
        return FilterCondition(kind, key, comparator, None)
    if comparator.endswith("IN"):
        return FilterCondition(kind, key, comparator, _values(tokens))
    if number:
        digits = tokens.next("number")
        return FilterCondition(kind, key, comparator, float(digits) if "." in digits else int(digits))
    return FilterCondition(kind, key, comparator, _unquoted(tokens.next("text")))


def _identified(name: str) -> tuple[str, str]:
    """Return what a name is of, and its key."""
    first, _, rest = name.partition(".")
    identifier, key = (first.lower(), rest) if rest else ("", name)
    kind = ALIASES.get(identifier)
    key = key[1:-1] if len(key) > 1 and key[0] == key[-1] and key[0] in '`"' else key
    if kind == "tag" and key:
        return kind, key
    if kind == "attribute" and (known := {**NUMBERS, **TEXTS}.get(key.lower())):
        return kind, known
    if kind == "metadata" and key in METADATA:
        return kind, METADATA[key]
    if kind == "span" and key in ("name", "status"):
        return kind, key
    raise QueryError(
        f"no filter goes by {name[:QUOTED_MAX_CHARS]!r}: {', '.join(sorted({*NUMBERS.values(), *TEXTS.values()}))}, "
        f"tags.<key>, metadata.{', '.join(METADATA)}, span.name and span.status do; for attributes and text of spans "
        "use the search of Tracelake (`tracelake search`, GET /api/v1/search)."
    )


def _comparator(tokens: _Tokens) -> str:
    if tokens.is_word("NOT"):
        tokens.word("IN")
        return "NOT IN"
    if tokens.is_word("IS"):
        negated = tokens.is_word("NOT")
        tokens.word("NULL")
        return "IS NOT NULL" if negated else "IS NULL"
    return tokens.next("sign", "name").upper()


def _values(tokens: _Tokens) -> tuple[str, ...]:
    tokens.word("(")
    texts = [_unquoted(tokens.next("text"))]
    while tokens.is_word(","):
        texts.append(_unquoted(tokens.next("text")))
    tokens.word(")")
    if len(texts) > FILTER_VALUES_MAX:
        raise QueryError(f"IN takes up to {FILTER_VALUES_MAX} values, and has {len(texts)}.")
    return tuple(texts)


def _unquoted(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])
