"""Messages of an output: rows, cut until the system takes each message; what alone is too large is named."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator

import pyarrow as pa

from tracelake.limits import OUTPUT_LEFT_OUT_NAMED_MAX, OUTPUT_MESSAGE_BYTES
from tracelake.pipeline.outputs.left_out import LeftOut
from tracelake.shards.cutting import cut


class Messages:
    """The messages of one transaction, as an iterator; who has read all of it knows what was left out."""

    def __init__(
        self,
        tables: Iterable[pa.Table],
        encode: Callable[[pa.Table], bytes],
        name: Callable[[pa.Table], str],
        fits: Callable[[bytes], bool],
    ) -> None:
        """`name` says what a row is, in a table of one."""
        self._encode = encode
        self._name = name
        self._fits = fits
        self._messages = self._made(tables)
        self.left_out: list[LeftOut] = []
        self.left_out_total = 0

    def __iter__(self) -> Iterator[bytes]:
        """Return itself."""
        return self

    def close(self) -> None:
        """Let go of what it reads from, also where a sink has failed on the way."""
        self._messages.close()

    def __next__(self) -> bytes:
        """Return the next one."""
        return next(self._messages)

    def _made(self, tables: Iterable[pa.Table]) -> Generator[bytes, None, None]:
        for table in tables:
            for few in cut(table, OUTPUT_MESSAGE_BYTES):
                yield from self._fitting(few)

    def _fitting(self, rows: pa.Table) -> Iterator[bytes]:
        message = self._encode(rows)
        if self._fits(message):
            yield message
        elif len(rows) > 1:
            half = len(rows) // 2
            yield from self._fitting(rows.slice(0, half))
            yield from self._fitting(rows.slice(half))
        else:
            self.left_out_total += 1
            if len(self.left_out) < OUTPUT_LEFT_OUT_NAMED_MAX:
                self.left_out.append(LeftOut(self._name(rows), len(message)))
