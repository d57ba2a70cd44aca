"""Parts: how their columns are stored, and what checks them."""

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
    """One that repeats values, or is nested, has one; one of distinct values is stored as it is."""
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


@pytest.mark.parametrize("xxh3", [True, False], ids=["as written now", "as written before"])
def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path, xxh3: bool) -> None:
    """Parts of an older release have no XXH3, and are compared by their SHA-256."""
    rows = with_row_ids(pa.table({"key": list(range(50))}), 0, 0, 1)
    part = write_part(open_objects(tmp_path.as_uri()), "s", 0, 0, rows, None)
    part = part if xxh3 else replace(part, xxh3="")
    file = tmp_path / part.path
    data = file.read_bytes()
    for place in range(0, len(data), 97):
        file.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(DamageError, match="checksum differs"):
            check_part(str(file), part)
    file.write_bytes(data)
    check_part(str(file), part)
