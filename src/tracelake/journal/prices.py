"""A lake's own prices of models, and their versions, which steps of the journal name.

A step's rows depend on the prices. Each change therefore writes a new version, which never changes, before readers see
it. A replay of a step reads the version that the step names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import date
from typing import Final

import msgspec

from tracelake._errors import DamageError, LimitError, NotFoundError, UsageError
from tracelake.formats import decode, encode
from tracelake.limits import NAME_QUOTED_MAX_CHARS, PRICES_MAX
from tracelake.otlp.prices import SHIPPED, Price, PriceTable
from tracelake.storage import Entry, KeyValueStore
from tracelake.storage.ports import change_record

PARTITION: Final = "prices"
FORMAT_VERSION: Final = 1
_CURRENT: Final = "current"
_VERSION_CHARS: Final = 16
_MODEL_MAX_CHARS: Final = 200
_DOLLARS_MAX: Final = 1e6


class OwnPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A price of the lake, in US dollars per million tokens."""

    model: str
    """Name of the model in lower case; `*` at its end matches any ending."""
    input: float
    output: float = 0.0
    cached_input: float | None = None
    """Of input that is read from a cache; as other input if absent."""
    cache_write: float | None = None
    """Of input that is written to a cache; as other input if absent."""
    valid_from: str = ""
    """First day of the price, UTC, as `2026-01-31`; empty for all days."""

    def to_dict(self) -> dict[str, object]:
        """Return the price as a plain object."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


class PriceList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version of a lake's own prices, in order of model and day."""

    prices: tuple[OwnPrice, ...] = ()
    format_version: int = FORMAT_VERSION

    @property
    def version(self) -> str:
        """Hash of the prices; empty for none."""
        return hashlib.sha256(encode(self)).hexdigest()[:_VERSION_CHARS] if self.prices else ""

    def table(self) -> PriceTable:
        """Return the table by which costs are computed."""
        own = (
            (
                each.model,
                Price(
                    each.input,
                    each.output,
                    each.cached_input,
                    each.cache_write,
                    date.fromisoformat(each.valid_from) if each.valid_from else None,
                ),
            )
            for each in self.prices
        )
        return PriceTable(tuple(own), self.version) if self.prices else SHIPPED


class Prices:
    """A lake's own prices of models: `lake.prices`. Threads may share it.

    They apply to spans that the pipeline decodes from its next run on. Costs of ingested spans stay as they are.
    """

    def __init__(self, key_value: KeyValueStore) -> None:
        self._key_value = key_value
        self._read: tuple[bytes, PriceTable] = (b"", SHIPPED)

    def all(self) -> list[OwnPrice]:
        """Return the own prices in order of model and day."""
        return list(self._list(self._key_value.get(PARTITION, _CURRENT)).prices)

    def table(self) -> PriceTable:
        """Return the current price table. It reads one small record."""
        entry = self._key_value.get(PARTITION, _CURRENT)
        if entry is None:
            return SHIPPED
        value, table = self._read
        if value != entry.value:
            table = self._list(entry).table()
            self._read = entry.value, table
        return table

    def table_of(self, version: str) -> PriceTable:
        """Return the price table of a version that a step names. Raises DamageError if it is lost."""
        if not version:
            return SHIPPED
        entry = self._key_value.get(PARTITION, version)
        if entry is None:
            raise DamageError(f"version {version} of the prices is lost. Restore the metadata from a backup.")
        return self._list(entry).table()

    def set(
        self,
        model: str,
        *,
        input: float,
        output: float = 0.0,
        cached_input: float | None = None,
        cache_write: float | None = None,
        valid_from: str = "",
    ) -> OwnPrice:
        """Add a price, or replace the price of this model that is valid from the same day.

        Args:
            model: name of the model, in any case; `*` at its end matches any ending. The host before a name and the
                release after it may be absent.
            input, output: US dollars per million tokens.
            cached_input, cache_write: the same for input that is read from a cache or written to it; by default as
                other input.
            valid_from: first day, UTC, such as `2026-01-31`. Before it, an earlier own price or the shipped price
                counts. By default all days.

        Raises UsageError for an invalid price, and LimitError if there are too many.
        """
        price = OwnPrice(
            model=model.strip().lower(),
            input=_dollars("input", input),
            output=_dollars("output", output),
            cached_input=None if cached_input is None else _dollars("cached_input", cached_input),
            cache_write=None if cache_write is None else _dollars("cache_write", cache_write),
            valid_from=_day(valid_from),
        )
        _check_model(price.model)

        def change(prices: Sequence[OwnPrice]) -> list[OwnPrice]:
            others = [each for each in prices if _key(each) != _key(price)]
            if len(others) >= PRICES_MAX:
                raise LimitError(f"the lake already has PRICES_MAX = {PRICES_MAX} prices; remove one first.")
            return [*others, price]

        self._change(change)
        return price

    def remove(self, model: str, valid_from: str | None = None) -> list[OwnPrice]:
        """Remove the prices of a model, or only the one that is valid from a day, and return them. Raises NotFoundError
        if there is none."""
        name, day = model.strip().lower(), None if valid_from is None else _day(valid_from)
        removed: list[OwnPrice] = []

        def change(prices: Sequence[OwnPrice]) -> list[OwnPrice]:
            removed[:] = [each for each in prices if each.model == name and day in (None, each.valid_from)]
            if not removed:
                of_day = f" valid from {day}" if day else ""
                raise NotFoundError(
                    f"the lake has no own price of {model[:NAME_QUOTED_MAX_CHARS]!r}{of_day}; `tracelake prices list` "
                    "shows all."
                )
            return [each for each in prices if each not in removed]

        self._change(change)
        return removed

    def _change(self, change: Callable[[Sequence[OwnPrice]], list[OwnPrice]]) -> None:
        def decide(current: PriceList | None) -> PriceList:
            changed = PriceList(tuple(sorted(change((current or PriceList()).prices), key=_key)))
            if changed.version:
                # Safety: the version exists before a step can name it.
                self._key_value.set(PARTITION, changed.version, encode(changed))
            return changed

        change_record(self._key_value, PARTITION, _CURRENT, self._list, encode, decide)

    def _list(self, entry: Entry | None) -> PriceList:
        if entry is None:
            return PriceList()
        return decode(PriceList, entry.value, f"record {PARTITION}/{entry.key}", FORMAT_VERSION)


def _key(price: OwnPrice) -> tuple[str, str]:
    return price.model, price.valid_from


def _check_model(model: str) -> None:
    name = model.removesuffix("*")
    if not model or len(model) > _MODEL_MAX_CHARS or "*" in name or not model.isprintable():
        raise UsageError(
            f"{model[:NAME_QUOTED_MAX_CHARS]!r} is not the name of a model: write 1 to {_MODEL_MAX_CHARS} characters, "
            "with `*` only at the end"
        )


def _dollars(name: str, number: float) -> float:
    if not 0 <= number <= _DOLLARS_MAX:
        raise UsageError(f"{name} is US dollars per million tokens, from 0 to {_DOLLARS_MAX:,.0f}")
    return float(number)


def _day(text: str) -> str:
    try:
        day = date.fromisoformat(text) if text else None
    except ValueError:
        day = None
    if text and (day is None or day.isoformat() != text):
        raise UsageError(f"valid_from={text[:NAME_QUOTED_MAX_CHARS]!r} is no day; write 2026-01-31")
    return text
