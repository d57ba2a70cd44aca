"""The stage benchmark times functions by name, so the names must exist."""

from __future__ import annotations

import pkgutil

from benchmarks.stages import STAGES


def test_what_is_timed_is_there() -> None:
    """Each name resolves to a function."""
    for targets in STAGES.values():
        for target in targets:
            assert callable(pkgutil.resolve_name(target)), target
