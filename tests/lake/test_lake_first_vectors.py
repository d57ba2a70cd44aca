"""Vectors that a lake has from its first span, chosen at its creation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracelake
from tests.lake.test_lake_vectors import ingest, nearest_plainly, said, told
from tests.search.embedders import HERE, bag
from tracelake import Lake
from tracelake._errors import UsageError

SOURCE = f"{HERE}:bag_of_words"
DESCRIBED = f"{SOURCE} (32 dimensions, cosine, version 1)"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def check_first_spans(folder: Path) -> None:
    """Check that all spans of the first transaction have vectors, and those of the second."""
    with tracelake.init(folder / "lake", buckets=2, vectors=SOURCE) as lake:
        ingest(lake, folder, 0, said(0, 0, "refund of my flight"), said(0, 1, "the weather is nice"))
        check_all(lake, 2)
        ingest(lake, folder, 1, said(1, 0, "cancel the flight"))
        check_all(lake, 3)


def check_all(lake: Lake, spans: int) -> None:
    """Check that all spans have vectors, and are found by them."""
    info = lake.index()
    assert info is not None
    assert (info.vectors, info.without_vector, info.documents) == (DESCRIBED, 0, spans)
    results = lake.search("flight", mode="semantic")
    assert told(results) == nearest_plainly(lake, bag("flight").astype(np.float64))


def test_the_first_spans_of_a_lake_have_its_vectors(tmp_path: Path) -> None:
    """No rebuild and no maintenance is needed."""
    check_first_spans(tmp_path)


def test_settings_say_it_where_no_argument_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment overrides the file, with dimensions and metric of an attribute; `none` overrides both."""
    Path("tracelake.toml").write_text(
        'vectors = "attributes.embedding"\nvector_dimensions = 3\nvector_metric = "dot"\n'
    )
    with tracelake.init(tmp_path / "file") as lake:
        assert str(lake.config.vectors) == "attributes.embedding (3 dimensions, dot)"
    with tracelake.init(tmp_path / "argument", dimensions=4) as lake:
        assert str(lake.config.vectors) == "attributes.embedding (4 dimensions, dot)"
    with tracelake.init(tmp_path / "none", vectors="none") as lake:
        assert lake.config.vectors is None
    with tracelake.init(tmp_path / "function", vectors=SOURCE) as lake:
        assert str(lake.config.vectors) == DESCRIBED
    monkeypatch.setenv("TRACELAKE_VECTORS", "attributes.other")
    with tracelake.init(tmp_path / "environment") as lake:
        assert str(lake.config.vectors) == "attributes.other (3 dimensions, dot)"


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"vectors": "nowhere:embed"}, "cannot be imported here: ModuleNotFoundError"),
        ({"vectors": f"{HERE}:bag"}, "is not declared as an embedder"),
        ({"vectors": SOURCE, "dimensions": 3}, "declares its dimensions and metric itself"),
        ({"vectors": "attributes.e"}, "set dimensions to the length of the vectors in attributes.e"),
        ({"vectors": "attributes.e", "dimensions": 0}, "dimensions must be from 1 to"),
        ({"vectors": "attributes.e", "dimensions": 3, "metric": "taxi"}, "must be cosine or dot, not 'taxi'"),
        ({"vectors": "embed"}, "neither module:function nor an attribute"),
        ({"dimensions": 3}, "name it with vectors"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    asked: dict[str, Any], what: str, tmp_path: Path
) -> None:
    """An invalid choice is refused before anything is created, and the error gives the reason."""
    with pytest.raises(UsageError, match=what):
        tracelake.init(tmp_path / "lake", **asked)
    assert not (tmp_path / "lake").exists()
