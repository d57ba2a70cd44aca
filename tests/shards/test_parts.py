"""Parts: the encoding of their columns, and their checksums."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from tracelake._errors import DamageError
from tracelake.shards.parts import check_part, write_part
from tracelake.shards.rows import with_row_ids
from tracelake.storage import open_objects


def test_a_column_has_a_dictionary_where_that_can_pay(tmp_path: Path) -> None:
    """Columns with repeated or nested values have a dictionary; columns of distinct values have none."""
    count = 2_000
    rows = pa.table(
        {
            "distinct": [f"text {i}" for i in range(count)],
            "repeated": [f"text {i % 100}" for i in range(count)],
            "nested": [[i] for i in range(count)],
        }
    )
    part = write_part(open_objects(tmp_path.as_uri()), "s", 0, 0, with_row_ids(rows, 0, 0, 1), None)
    group = pq.read_metadata(tmp_path / part.path).row_group(0)
    encodings = {group.column(n).path_in_schema: group.column(n).encodings for n in range(group.num_columns)}
    with_dictionary = {path for path, used in encodings.items() if "RLE_DICTIONARY" in used}
    assert with_dictionary == {"repeated", "nested.list.element"}


def check_statistics(folder: Path) -> None:
    """Check which columns have minimum and maximum in each row group."""
    rows = pa.table(
        {
            "key": [f"{number:050d}" for number in range(100)],
            "short": ["a", "b"] * 50,
            "long": ["x" * 4_000] * 100,
            "number": list(range(100)),
            "time": pa.array(range(100), pa.timestamp("us")),
            "nested": [[{"text": "y" * 4_000}]] * 100,
        }
    )
    part = write_part(open_objects(folder.as_uri()), "s", 0, 0, with_row_ids(rows, 0, 0, 1), "key")
    group = pq.read_metadata(folder / part.path).row_group(0)
    told = {group.column(n).path_in_schema: group.column(n).statistics for n in range(group.num_columns)}
    with_bounds = {path for path, each in told.items() if each is not None and each.has_min_max}
    assert with_bounds == {"key", "short", "number", "time", "_row_id"}
    assert part.footer_bytes < 4_000


def test_a_footer_has_no_long_texts(tmp_path: Path) -> None:
    """A footer has no statistics of long texts: queries do not prune by them, and they filled most of a footer."""
    check_statistics(tmp_path)


@pytest.mark.parametrize("xxh3", [True, False], ids=["as written now", "as written before"])
def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path, xxh3: bool) -> None:
    """A flipped bit is noticed anywhere; parts of an older release have no XXH3 and are checked by SHA-256."""
    rows = with_row_ids(pa.table({"key": list(range(50))}), 0, 0, 1)
    part = write_part(open_objects(tmp_path.as_uri()), "s", 0, 0, rows, None)
    part = part if xxh3 else replace(part, xxh3="")
    file = tmp_path / part.path
    data = file.read_bytes()
    for place in range(0, len(data), 97):
        file.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(DamageError, match="checksum"):
            check_part(str(file), part)
    file.write_bytes(data)
    check_part(str(file), part)
