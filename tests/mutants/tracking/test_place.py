"""Mutants that `tests/tracking/test_place.py` notices."""

from __future__ import annotations

from pathlib import Path

import tracelake
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.tracking import test_place
from tests.tracking.test_place import _other_processes
from tracelake.tracking import location


def test_a_place_without_a_key_signs_by_none_that_others_know(tmp_path: Path) -> None:
    """If `tracking.json` contains no key, page tokens are signed with a key of this process."""
    with tracelake.init(tmp_path / "lake") as lake:
        written = lake.hot.set_up()
        test_place.restart()
        named = location.read_place(lake.objects)
        assert named is not None
        assert written.page_key == named.page_key != ""

        def check() -> None:
            keys = {location._page_key(location.TrackingLocation("lake", "sqlite")) for _ in range(2)}
            assert len(keys) == 2
            assert min(map(len, keys)) == 32

        check()
        assert_caught(Mutation("a key is secret", location._page_key, rewrite("_(16)", "''")), check)
