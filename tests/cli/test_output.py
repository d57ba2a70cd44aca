"""JSON output is lossless; text output is harmless."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.cli.output import EncodedJson, iter_rows, json_rows, plain, print_json, to_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.decimals() | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner), max_leaves=8
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**64 - 1, 2**64 - 1),
        (2**64, "18446744073709551616"),
        (-(2**63) - 1, "-9223372036854775809"),
        (math.nan, None),
        (-math.inf, None),
        (1.5, 1.5),
        (True, True),
        (Decimal("3.00"), 3),
        (Decimal("1.25"), 1.25),
        (Decimal("0.1234567890123456789012345"), "0.1234567890123456789012345"),
        (Decimal("NaN"), None),
        (Decimal("1" + "0" * 30), "1" + "0" * 30),
        (b"\xff\x00", "/wA="),
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "2026-01-02T03:04:05.000006+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(1, 2), "01:02:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({1: (2, {3})}, {"1": [2, [3]]}),
    ],
)
def test_each_kind_of_value(value: Any, expected: Any) -> None:
    """Every type that a query can return has one form in JSON."""
    got = to_json(value)
    assert (got, type(got)) == (expected, type(expected))


@given(VALUES)
def test_whatever_comes_is_valid_json(value: Any) -> None:
    """All output is strict JSON, and reads back unchanged."""
    plainly = to_json(value)
    assert json.loads(json.dumps(plainly, allow_nan=False)) == plainly


def test_rows_keep_every_column() -> None:
    """Columns with the same name are all kept."""
    table = pa.table([[1], [2], [3]], names=["a", "a_1", "a"])
    assert list(iter_rows(table)) == [{"a": 1, "a_1": 2, "a_2": 3}]


def test_maps_are_objects_or_pairs() -> None:
    """A map is an object, or a list of pairs if its keys are neither strings nor numbers."""
    names = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))
    keys = pa.struct([("x", pa.int64())])
    odd = pa.array([[({"x": 1}, 2)]], pa.map_(keys, pa.int64()))
    assert to_json(list(iter_rows(pa.table({"m": names})))) == [{"m": {"k": 1}}]
    assert to_json(list(iter_rows(pa.table({"m": odd})))) == [{"m": [[{"x": 1}, 2]]}]


def test_one_odd_map_decides_the_form_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows have the same form of maps, whichever batch of rows has the repeated key."""
    monkeypatch.setattr("tracelake.cli.output._ROWS_CONVERTED", 1)
    maps = pa.array([[("k", 1)], [("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))
    assert [row["m"] for row in iter_rows(pa.table({"m": maps}))] == [[("k", 1)], [("k", 1), ("k", 2)]]


@pytest.mark.parametrize("at_once", [1, 2, 2_000])
def test_rows_encoded_at_once_are_the_same(
    at_once: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that are encoded many at once are the same values as rows that are encoded alone."""
    monkeypatch.setattr("tracelake.cli.output._ROWS_CONVERTED", at_once)
    texts = pa.map_(pa.string(), pa.string())
    nested = pa.list_(pa.struct([("m", texts), ("n", pa.float64())]))
    once, repeated = {"m": [("k", "v")], "n": math.nan}, {"m": [("k", "1"), ("k", "2")], "n": None}
    several = [
        pa.table(
            {
                "i": pa.array([2**63 - 1, None, -1]),
                "u": pa.array([2**64 - 1, 0, None], pa.uint64()),
                "d": pa.array([math.inf, -0.0, 1e300]),
                "b": pa.array([b"\xff", b"", None]),
                "t": pa.array(['"\\\n\u2028é\x00', "", None]),
                "m": pa.array([[("a", "b")], [], None], texts),
                "l": pa.array([[once], [inner], None], nested),
            }
        )
        for inner in (once, repeated)
    ]
    several += [
        pa.table({"when": [datetime(2026, 1, 2, tzinfo=UTC)], "much": [Decimal("0.1")]}),
        pa.table({"none": pa.array([], texts)}),
        pa.table(
            {"'a\"": [1], "A": [2], "a": [{"refs": [b"\xff", None], "x": [math.inf]}], "n": pa.nulls(1)}
        ),
        pa.table({"s": pa.array([None, {"b": None}], pa.struct([("b", pa.binary())]))}),
        several[0].slice(1, 1),
        pa.concat_tables([several[0].slice(2), several[0].slice(0, 2)]),
    ]
    for table in several:
        print_json(json_rows(table))
        encoded = json.loads(capsys.readouterr().out)
        assert encoded == json.loads(json.dumps(to_json(list(iter_rows(table)))))
    assert any(isinstance(each, EncodedJson) for each in json_rows(several[0]))


@given(st.text())
def test_plain_text_cannot_steer_a_terminal(text: str) -> None:
    """Plain text loses control and direction characters, and keeps all harmless ones."""
    safe = plain(text)
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or "\u202a" <= c <= "\u202e" for c in safe)
    assert plain(safe) == safe
