"""Batches of items, bounded by bytes and by number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ItemT = TypeVar("ItemT")


def batches(
    items: Iterable[ItemT], bytes_of: Callable[[ItemT], int], most_bytes: int, most: int | None = None
) -> Iterator[list[ItemT]]:
    """Yield the items in order, in lists of at most `most_bytes` together, and of at most `most` items if given.

    A larger item is a list by itself.
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
