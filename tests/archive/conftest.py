"""Lakes with a hot tier on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.archive.place import HotLake
from tests.tracking.conftest import new_url, postgres

__all__ = ["new_url", "postgres"]


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """Return new directories."""
    return (tmp_path / str(number) for number in count())


@pytest.fixture
def make(new_url: Callable[[], str], tmp_path: Path) -> Iterator[Callable[..., HotLake]]:
    """Return a factory of lakes with a hot tier that archive with the given settings, after a minute."""
    made: list[HotLake] = []

    def of(layout: str = "trace", retention: str = "1m", **archive: Any) -> HotLake:
        path = tmp_path / f"lake-{len(made)}"
        made.append(HotLake(path, new_url(), layout=layout, retention=retention, **archive))
        return made[-1]

    yield of
    for each in made:
        with closing(each.tracking), closing(each.lake):
            pass
