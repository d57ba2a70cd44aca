"""Comparison of several disturbed writers' output with that of a single writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import tracelake
from tracelake import Lake
from tracelake.indexing.merge import COMMITTER
from tracelake.journal.model import inputs_of
from tracelake.journal.store import Journal
from tracelake.tasks.runners import InProcess


def check_as_of_one(lake: Lake, fed: Mapping[str, bytes], reference: Path) -> str:
    """Compare with a single writer that takes the same transactions in a separate lake; return a summary."""
    journal = Journal(lake._opened.key_value, "main")
    upper = lake.table("spans").info().upper
    taken = [
        [item.path for ranges in step.sources.values() for item in inputs_of(ranges)]
        for step in (journal.read(number).step for number in range(upper))
        if step is not None and journal.quarantine_record(step.transaction) is None
    ]
    flat = [path for paths in taken for path in paths]
    lost, twice = sorted(set(fed) - set(flat)), [path for path, n in Counter(flat).items() if n > 1]
    aside = [info.path for info in lake.objects.list("quarantine/")]
    assert not lost, f"in no transaction: {lost}; quarantine: {aside}"
    assert not twice, f"in more than one transaction: {twice} of {taken}"
    assert len([commit for commit in lake.log() if commit.committer != COMMITTER]) == len(taken)
    stored, expected = contents(lake), _single_writer(fed, taken, reference)
    assert stored == expected, f"the tables are not those of a single writer: {stored}, {expected}"
    report = lake.verify()
    assert report.findings == (), report.findings
    return (
        f"{len(fed)} segments in {upper} transactions, {upper - len(taken)} of them set aside, "
        f"{report.rows} rows: the tables are those of a single writer, verify finds nothing"
    )


def _single_writer(fed: Mapping[str, bytes], taken: Sequence[Sequence[str]], path: Path) -> list[str]:
    with tracelake.init(path) as reference, closing(reference.pipeline(runner=InProcess())) as pipeline:
        for paths in taken:
            for segment in paths:
                reference.objects.put(segment, fed[segment])
            assert pipeline.run_once() is not None
        return contents(reference)


def contents(lake: Lake) -> list[str]:
    """Return a hash of each table."""
    return [lake.table(name).content_hash() for name in ("spans", "traces")]
