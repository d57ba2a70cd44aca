"""Mutants that `tests/pipeline/test_keyed_outputs.py` notices."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.pipeline import test_keyed_outputs
from tests.pipeline.spans import a_line, a_span
from tests.pipeline.test_keyed_outputs import folder, lake
from tracelake import Lake
from tracelake.pipeline import protocol
from tracelake.pipeline.outputs.external import KeyedOutput, NewSpans, TableChanges
from tracelake.pipeline.registrations import RegistrationStore
from tracelake.tasks.runners import InProcess

RULES = (
    Mutation(
        "before it begins nothing is written",
        protocol.is_to_be_written,
        rewrite("_ and _1 and _2", "_1 and _2"),
    ),
    Mutation("no batch is empty", protocol.is_to_be_written, rewrite("_1 and _ and _2", "_1 and _2")),
    Mutation("at or below the marker is skipped", protocol.is_to_be_written, rewrite("a > b", "a >= b")),
    Mutation("it begins where nobody is", protocol.begins_at, rewrite("_1 + 1", "_1")),
)


@pytest.mark.parametrize("broken", RULES, ids=rule_of)
def test_broken_rules_are_caught(broken: Mutation) -> None:
    """The test above fails for each broken rule of the table."""
    assert_caught(broken, test_keyed_outputs.test_what_is_written_follows_from_four_numbers)


@pytest.mark.parametrize(
    "broken",
    [Mutation("after a failure nobody knows the marker", KeyedOutput._write, drop("_ = None"))],
    ids=rule_of,
)
def test_a_marker_is_asked_for_anew_after_a_failure(
    broken: Mutation, lake: Lake, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_keyed_outputs.test_a_marker_is_asked_for_anew_after_a_failure(
            lake, folder, tmp_path, monkeypatch
        ),
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "what was not removed is removed again", RegistrationStore.remove, rewrite("_ is None", "True")
        )
    ],
    ids=rule_of,
)
def test_a_lost_reply_of_an_output_is_read_back(broken: Mutation) -> None:
    """The test above fails if any lost reply is not read back."""
    assert_caught(broken, test_keyed_outputs.outputs_change_without_replies)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("corrected spans are sent", NewSpans.rows, rewrite("0 if _ else _1", "_1")),
        Mutation("new spans are not sent", NewSpans.rows, rewrite("_1 == _2", "_1 >= _2")),
    ],
    ids=rule_of,
)
def test_a_correction_of_costs_sends_no_spans(broken: Mutation, folder: Path, tmp_path: Path) -> None:
    """The check fails if spans are sent again, or not at all."""
    assert_caught(broken, lambda: test_keyed_outputs.check_corrected(folder, tmp_path / "a.jsonl"))


@pytest.mark.parametrize("table", ["spans", "traces"])
def test_the_changes_of_a_table_go_out_with_their_sign(
    lake: Lake, folder: Path, tmp_path: Path, table: str
) -> None:
    """Adding each +1 row and removing each -1 row, in order, gives the table and never two rows of one key."""
    key = ("trace_id", "span_id")[: 1 + (table == "spans")]

    def check() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as fresh:
            fresh.outputs.add("changes", "my_sinks:Files", table)
            test_keyed_outputs.ingest(fresh, tmp_path / "a.jsonl", 9)
            rows: dict[tuple[str, ...], dict[str, Any]] = {}
            test_keyed_outputs.ingest(fresh, tmp_path / "b.jsonl", 1, 2)
            (tmp_path / "c.jsonl").write_bytes(a_line(a_span(1, 1, end=99), a_span(3, 3)))
            fresh.ingest(tmp_path / "c.jsonl", runner=InProcess())
            test_keyed_outputs.ingest(fresh, tmp_path / "d.jsonl", 2)
            changes = test_keyed_outputs.lines(folder)
            for t, some in sorted(changes.items()):
                for change in some:
                    assert change.pop("_transaction") == t
                    of = tuple(change[column] for column in key)
                    if change.pop("_change") == 1:
                        assert of not in rows
                        rows[of] = change
                    else:
                        assert rows.pop(of) == change, "it was there, just so"
            wanted = fresh.table(table).to_arrow().to_pylist(maps_as_pydicts="strict")
            assert len(rows) == len(wanted) - 1
            by_key = {tuple(row[column] for column in key): row for row in wanted}
            assert all((json.loads(json.dumps(by_key[of], default=str)) == row for of, row in rows.items()))
            assert len(changes[max(changes)]) == 3, "one row went, and two came"

    del lake
    check()
    if table == "spans":
        rule = "what was retracted comes first"
        assert_caught(Mutation(rule, TableChanges.tables, rewrite("reversed(_1)", "_1")), check)
