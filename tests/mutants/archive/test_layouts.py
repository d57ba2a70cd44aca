"""Mutants that `tests/archive/test_layouts.py` notices."""

from __future__ import annotations

import pytest

from tests.archive import test_layouts
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake._errors import DamageError
from tracelake.archive import repositories
from tracelake.archive.model import LayoutName
from tracelake.archive.repositories import path_in, read_archived
from tracelake.storage import MemoryObjectStore


@pytest.mark.parametrize("layout", ["trace", "pack"])
def test_a14_an_object_that_is_missing_cut_or_flipped_is_named(layout: LayoutName) -> None:
    """For damage at every byte, the restore returns the trace, or an error with the name of the object (A14)."""
    objects = MemoryObjectStore("memory://repository")
    places = test_layouts.stored(objects, layout)
    assert [test_layouts.back(objects, place) for place in places] == list(test_layouts.DATA.values())
    place = places[0]
    path = path_in(objects, place.location)
    whole = objects.get(path)

    def each_damage() -> None:
        for at in range(len(whole)):
            objects.put(path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            expect_named()
            objects.put(path, whole[:at])
            expect_named()
        objects.delete(path)
        with pytest.raises(DamageError, match="is missing"):
            test_layouts.back(objects, place)

    def expect_named() -> None:
        try:
            data = test_layouts.back(objects, place)
        except DamageError as error:
            data = test_layouts.DATA["a" * 32] if path in str(error) else b""
        assert data == test_layouts.DATA["a" * 32]

    each_damage()
    objects.put(path, whole)
    if layout == "trace":
        assert_caught(
            Mutation("no checksum", read_archived, rewrite("if _: ...", "if False: ...")), each_damage
        )
        objects.put(path, whole)
        assert_caught(Mutation("sizes alone", read_archived, rewrite("_1 or _", "_1")), each_damage)


@pytest.mark.parametrize(
    "broken", [Mutation("what is moved is there", path_in, rewrite("_1 or _", "_1 or False"))], ids=rule_of
)
def test_a_location_of_another_repository(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_layouts.test_a_location_of_another_repository)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("not compared", repositories.read_back, rewrite("_1 == _", "bool(_1)")),
        Mutation("not looked for", repositories.read_back, rewrite("False", "True")),
    ],
    ids=rule_of,
)
def test_what_is_read_back_is_compared(broken: Mutation) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, test_layouts.test_what_is_read_back_is_compared)
