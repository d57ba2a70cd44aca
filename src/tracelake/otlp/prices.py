"""Cost of a model call by a price table, for spans whose sender states none.

The shipped table is part of the code, and `TRANSFORM` contains its fingerprint. The journal names the version of a
lake's own prices for each step. A replay therefore gives the same rows.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

_MILLION: Final = 1_000_000
_MODELS_CACHED_MAX: Final = 1_024
"""Names of models whose prices are cached."""
_MODEL_MAX_CHARS: Final = 1_000
"""Length of a model name beyond which it has no price. The time to find one grows with the square."""
_DIGITS: Final = 12
"""Decimal places of a cost, beyond which doubles are inexact."""
_RELEASE: Final = re.compile(
    r"[-@:](?:latest|preview|[0-9]{4}-?[0-9]{2}-?[0-9]{2}|[0-9]{2}-[0-9]{2}|[0-9]{3,4}|v[0-9][0-9.:]*)$"
)
"""The date or version of a release at the end of a model name."""
_HOST: Final = re.compile(r".*/|(?:[a-z]+\.)?(?:anthropic|mistral|deepseek)\.")
"""The host or maker before a model name, as in `openai/gpt-4o` or `us.anthropic.claude-opus-4-5`."""


RATES: Final = {
    "input": "Input",
    "cached_input": "Cache read",
    "cache_write": "Cache write",
    "output": "Output",
}
"""The dollars of a price in display order, with their labels."""


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Price of a model in US dollars per million tokens, shipped or of a lake. Records contain the fields in this
    order."""

    model: str
    """Name of the model in lower case; in an own price, `*` at its end matches any ending."""
    input: float
    output: float = 0.0
    cached_input: float | None = None
    """Of input that is read from a cache; as other input if absent."""
    cache_write: float | None = None
    """Of input that is written to a cache; as other input if absent."""
    valid_from: str = ""
    """First day of the price, UTC, as `2026-01-31`; empty for all days. The first shipped price of a model also holds
    before."""

    def to_dict(self) -> dict[str, object]:
        """Return the price as a plain object."""
        return msgspec.structs.asdict(self)

    @property
    def rates(self) -> dict[str, float | None]:
        """The dollars by their labels, in display order."""
        return {label: getattr(self, name) for name, label in RATES.items()}

    def cost(self, inputs: int, outputs: int, cache_reads: int, cache_writes: int) -> float:
        """Return US dollars for these tokens. Some senders do not count cached tokens as input; the cached tokens may
        then exceed the input."""
        others = inputs - cache_reads - cache_writes
        dollars = (
            (others if others >= 0 else inputs) * self.input
            + cache_reads * (self.input if self.cached_input is None else self.cached_input)
            + cache_writes * (self.input if self.cache_write is None else self.cache_write)
            + outputs * self.output
        )
        return round(dollars / _MILLION, _DIGITS)


@cache
def price_table() -> Mapping[str, Sequence[Price]]:
    """Return the prices of each model name, oldest first."""
    shipped = tomllib.loads((Path(__file__).parent / "prices.toml").read_text())
    return {
        model: tuple(
            Price(model=model, **{**row, "valid_from": str(row.get("valid_from", ""))}) for row in rows
        )
        for model, rows in shipped.items()
    }


@cache
def table_fingerprint() -> str:
    """Return a short hash of the price table. It distinguishes rows that were computed with different tables."""
    return hashlib.sha256(repr(sorted(price_table().items())).encode()).hexdigest()[:8]


def _names_of(model: str) -> list[str]:
    """Return the names by which a model may have a price: as sent, without its host, and without its release."""
    names = [model.strip().lower()]
    if match := _HOST.match(names[0]):
        names.append(names[0][match.end() :])
    while (shorter := _RELEASE.sub("", names[-1])) != names[-1]:
        names.append(shorter)
    return names


@lru_cache(_MODELS_CACHED_MAX)
def prices_of(model: str) -> Sequence[Price]:
    """Return the shipped prices of a model. The name may have a prefix of a host or a suffix of a release. Empty for an
    unknown model."""
    table = price_table()
    return next((table[name] for name in _names_of(model) if name in table), ())


def price_at(model: str, time_ns: int) -> Price | None:
    """Return the shipped price of a model at a time, if it is known."""
    prices = prices_of(model) if len(model) <= _MODEL_MAX_CHARS else ()
    if len(prices) < 2:
        return prices[0] if prices else None
    day = _day(time_ns)
    valid = [price for price in prices if price.valid_from <= day]
    return valid[-1] if valid else prices[0]


def _day(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).date().isoformat()


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices of a lake: its own, then those that are shipped."""

    own: tuple[Price, ...] = ()
    """The lake's own prices."""
    version: str = ""
    """Version of the own prices; empty for none."""
    _matching: dict[str, Sequence[Price]] = field(default_factory=dict, compare=False, repr=False)

    def price_at(self, model: str, time_ns: int) -> Price | None:
        """Return the price of a model at a time, if it is known. Of own prices that are valid, the most specific name
        wins, then the latest day. An own price wins over a shipped one."""
        if self.own and (prices := self.own_prices(model)):
            day = _day(time_ns)
            for price in prices:
                if price.valid_from <= day:
                    return price
        return price_at(model, time_ns)

    def own_prices(self, model: str) -> Sequence[Price]:
        """Return the own prices of a model in the order in which they win."""
        if len(model) > _MODEL_MAX_CHARS:
            return ()
        matching = self._matching.get(model)
        if matching is None:
            if len(self._matching) >= _MODELS_CACHED_MAX:
                self._matching.clear()
            names = _names_of(model)
            matching = [each for each in self.own if _fits(each.model, names)]
            matching.sort(key=lambda each: each.valid_from, reverse=True)
            matching.sort(key=lambda each: (each.model.endswith("*"), -len(each.model)))
            self._matching[model] = matching
        return matching


def _fits(pattern: str, names: Sequence[str]) -> bool:
    if pattern.endswith("*"):
        return any(name.startswith(pattern[:-1]) for name in names)
    return pattern in names


SHIPPED: Final = PriceTable()
"""The table of a lake without own prices."""


_USAGE: Final = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_tokens")
PRICED_COLUMNS: Final = ("model", "start_ns", *_USAGE, "cost")
"""The columns of a span that `outdated` reads."""


def fill(columns: dict[str, list[Any]], starts_ns: Sequence[Any], table: PriceTable = SHIPPED) -> None:
    """Add the cost of spans that have a model and tokens, and no cost yet."""
    if "model" not in columns or not ("input_tokens" in columns or "output_tokens" in columns):
        return
    nothing: list[Any] = [None] * len(starts_ns)
    costs = columns.setdefault("cost", list(nothing))
    usage = [columns.get(name, nothing) for name in _USAGE]
    for span, model in enumerate(columns["model"]):
        if costs[span] is not None or model is None:
            continue
        inputs, outputs, cache_reads, cache_writes = (column[span] for column in usage)
        if inputs is None and outputs is None:
            continue
        if (price := table.price_at(model, starts_ns[span])) is not None:
            costs[span] = price.cost(inputs or 0, outputs or 0, cache_reads or 0, cache_writes or 0)


def outdated(rows: pa.Table, table: PriceTable) -> list[int]:
    """Return the positions of stored spans whose cost is not the one by a price table. The sender may have stated it.

    `rows` have PRICED_COLUMNS.
    """
    columns: dict[str, list[Any]] = {name: rows[name].to_pylist() for name in ("model", *_USAGE)}
    fill(columns, rows["start_ns"].to_pylist(), table)
    usage = zip(columns["model"], columns["input_tokens"], columns["output_tokens"], strict=True)
    costs = zip(columns["cost"], rows["cost"].to_pylist(), usage, strict=True)
    return [
        span
        for span, (cost, stored, (model, inputs, outputs)) in enumerate(costs)
        if cost != stored and model is not None and (inputs is not None or outputs is not None)
    ]
