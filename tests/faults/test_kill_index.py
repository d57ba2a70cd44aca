"""Campaign `index`, short: executors and drivers die, and one complete index remains."""

from __future__ import annotations

from pathlib import Path

from tests.faults.kill_index import campaign


def test_builds_and_merges_with_kills_leave_one_whole_index(tmp_path: Path) -> None:
    """Three builds and their merges leave one complete index, although processes of each kind are killed."""
    ends = campaign(tmp_path, 3, seed=3)
    assert all(ends[f"{kind} done"] for kind in ("build", "publish", "publish_merge"))
    assert ends["build killed"] + ends["publish killed"] > 0
    assert ends["checks of bag_of_words"] + ends["checks of by_dot"] > 0
