"""Enum numbers ⇄ the words in columns `kind` and `status`. A number without a word is kept as digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracelake.otlp.values import RefusedError
from tracelake.results import SERVER_KINDS

_INT32: Final = range(-(2**31), 2**31)


class EnumNames(dict[int | str, str]):
    """Look a number, or the enum's own name as OTLP/JSON senders sometimes write it, up to get the word."""

    def __init__(self, field: str, prefix: str, words: Sequence[str]) -> None:
        super().__init__(enumerate(words))
        self.update((prefix + word, word) for word in words)
        self.numbers: Final = {word: number for number, word in enumerate(words)}
        self._field: Final = field

    def __missing__(self, key: int | str) -> str:
        """Return digits for an unknown number. Raises RefusedError for an unknown name."""
        try:
            number = int(key)
        except ValueError:
            raise RefusedError(f"{self._field}: no such name: {key!r:.60}") from None
        if number not in _INT32:
            raise RefusedError(f"{self._field}: {number} is not a 32-bit number")
        return self[number] if number in self else str(number)

    def number(self, word: str) -> int:
        """Return the number that the word stands for."""
        return self.numbers[word] if word in self.numbers else int(word)


KINDS: Final = EnumNames(
    "kind", "SPAN_KIND_", ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
)
STATUSES: Final = EnumNames("status.code", "STATUS_CODE_", ("UNSET", "OK", "ERROR"))
IS_SERVER_SQL: Final = f"kind in {SERVER_KINDS}"
"""SQL of the side of a span, for a relation with column `kind`: true on the receiving side of a call."""
