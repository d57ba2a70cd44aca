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
from tracelake.otlp.prices import RATES, SHIPPED, Price, PriceTable
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore
from tracelake.storage.ports import change_record

PARTITION: Final = "prices"
FORMAT_VERSION: Final = 1
_CURRENT: Final = "current"
_APPLIED: Final = "applied"
_VERSION_CHARS: Final = 16
_MODEL_MAX_CHARS: Final = 200
_DOLLARS_MAX: Final = 1e6


class PriceList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version of a lake's own prices, in order of model and day."""

    prices: tuple[Price, ...] = ()
    format_version: int = FORMAT_VERSION

    @property
    def version(self) -> str:
        """Hash of the prices; empty for none."""
        return hashlib.sha256(encode(self)).hexdigest()[:_VERSION_CHARS] if self.prices else ""

    def table(self) -> PriceTable:
        """Return the table by which costs are computed."""
        return PriceTable(self.prices, self.version) if self.prices else SHIPPED


class AppliedPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State of the correction of stored costs after a change of prices."""

    version: str = ""
    """Version of the own prices by which all spans of transactions below `upper` have their costs."""
    upper: int = 0
    spans: int = 0
    """Spans of the last correction that changed any."""
    applied_at: str = ""
    """Its time, ISO 8601, UTC; empty if there was no correction."""
    claimed_at_s: float = 0.0
    """Time at which a process last worked on a correction, as seconds since 1970; 0 if none does."""
    format_version: int = FORMAT_VERSION


class Prices:
    """A lake's own prices of models: `lake.prices`. Threads may share it.

    They apply to spans that the pipeline decodes from its next run on. `Maintenance.apply_prices` corrects the costs of
    earlier spans.
    """

    def __init__(self, key_value: KeyValueStore) -> None:
        self._key_value = key_value
        self._read: tuple[bytes, PriceTable] = (b"", SHIPPED)

    def all(self) -> list[Price]:
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

    def table_of_all(self) -> PriceTable:
        """Return a price of each model name that ever had one."""
        prices: dict[str, Price] = {}
        for key in self._key_value.keys(PARTITION):
            if key not in (_CURRENT, _APPLIED):
                prices |= {price.model: price for price in self.table_of(key).own}
        return PriceTable(tuple(prices.values()))

    def is_changed(self) -> bool:
        """Return whether the lake has or had own prices."""
        return self._key_value.get(PARTITION, _CURRENT) is not None

    def applied(self) -> AppliedPrices:
        """Return the state of the correction of stored costs."""
        return self._applied(self._key_value.get(PARTITION, _APPLIED))

    def set_applied(self, state: AppliedPrices, expected: AppliedPrices | None = None) -> bool:
        """Record the state of the correction. With `expected`, return False if another process has changed it."""
        if expected is None:
            self._key_value.set(PARTITION, _APPLIED, encode(state))
            return True
        entry = self._key_value.get(PARTITION, _APPLIED)
        version = ABSENT if entry is None else entry.version
        return self._applied(entry) == expected and isinstance(
            self._key_value.set_if(PARTITION, _APPLIED, encode(state), version), Done
        )

    def _applied(self, entry: Entry | None) -> AppliedPrices:
        if entry is None:
            return AppliedPrices()
        return decode(AppliedPrices, entry.value, f"record {PARTITION}/{entry.key}", FORMAT_VERSION)

    def set(
        self,
        model: str,
        *,
        input: float,
        output: float = 0.0,
        cached_input: float | None = None,
        cache_write: float | None = None,
        valid_from: str = "",
    ) -> Price:
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
        price = Price(
            model=model.strip().lower(),
            input=input,
            output=output,
            cached_input=cached_input,
            cache_write=cache_write,
            valid_from=_day(valid_from),
        )
        dollars = {name: getattr(price, name) for name in RATES}
        price = msgspec.structs.replace(
            price, **{name: _dollars(name, each) for name, each in dollars.items()}
        )
        _check_model(price.model)

        def change(prices: Sequence[Price]) -> list[Price]:
            others = [each for each in prices if _key(each) != _key(price)]
            if len(others) >= PRICES_MAX:
                raise LimitError(f"the lake already has PRICES_MAX = {PRICES_MAX} prices; remove one first.")
            return [*others, price]

        self._change(change)
        return price

    def remove(self, model: str, valid_from: str | None = None) -> list[Price]:
        """Remove the prices of a model, or only the one that is valid from a day, and return them. Raises NotFoundError
        if there is none."""
        name, day = model.strip().lower(), None if valid_from is None else _day(valid_from)
        removed: list[Price] = []

        def change(prices: Sequence[Price]) -> list[Price]:
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

    def _change(self, change: Callable[[Sequence[Price]], list[Price]]) -> None:
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


def _key(price: Price) -> tuple[str, str]:
    return price.model, price.valid_from


def _check_model(model: str) -> None:
    name = model.removesuffix("*")
    if not model or len(model) > _MODEL_MAX_CHARS or "*" in name or not model.isprintable():
        raise UsageError(
            f"{model[:NAME_QUOTED_MAX_CHARS]!r} is not the name of a model: write 1 to {_MODEL_MAX_CHARS} characters, "
            "with `*` only at the end"
        )


def _dollars(name: str, number: float | None) -> float | None:
    if number is None:
        return None
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
