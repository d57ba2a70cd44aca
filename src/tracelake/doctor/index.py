"""Whether the full-text index can be opened, and counts few rows that were replaced."""

from __future__ import annotations

from typing import Final

from tracelake import limits
from tracelake.doctor.checks import Verdict
from tracelake.results import IndexInfo

REBUILD: Final = "Build the index anew with `tracelake index rebuild`."


def check_index(info: IndexInfo | None, rows: int) -> Verdict:
    """Judge an index, None where there is none yet, over a table `spans` with so many rows."""
    if info is None:
        return Verdict("ok", "there is none yet")
    most = info.parts_max
    said = f"{info.parts:,} parts" + (f" of {most:,} that this machine can open" if most is not None else "")
    said += f", {info.documents:,} documents for {rows:,} spans, text {info.text or 'of another version'}"
    if most is not None and info.parts > most:
        return Verdict("failed", f"{said}: searches are refused", f"{REBUILD} Or raise vm.max_map_count.")
    if most is not None and info.parts > most // 2:
        # A server that goes on to a new commit has the old index open beside it for a while.
        return Verdict("warning", f"{said}: a server has two open at times", REBUILD)
    if info.documents - rows > limits.INDEX_REPLACED_SHARE_MAX * info.documents:
        return Verdict("warning", f"{said}: scores count those that were replaced", REBUILD)
    return Verdict("ok", said)
