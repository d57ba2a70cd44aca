"""Items cut into batches that fit: by their bytes, and by their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ItemT = TypeVar("ItemT")


def batches(
    items: Iterable[ItemT], bytes_of: Callable[[ItemT], int], most_bytes: int, most: int | None = None
) -> Iterator[list[ItemT]]:
    """Yield the items in their order, in lists of at most so many bytes together, and at most so many where it is said.

    One that is larger is a list by itself.
    """
    batch: list[ItemT] = []
    room = most_bytes
    for item in items:
        size_bytes = bytes_of(item)
        if batch and (len(batch) == most or size_bytes > room):
            yield batch
            batch, room = [], most_bytes
        batch.append(item)
        room -= size_bytes
    if batch:
        yield batch
