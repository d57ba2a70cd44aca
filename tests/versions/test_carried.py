"""After a refused commit, all acknowledged entries staged for it, and no others, are staged again."""

from __future__ import annotations

import pytest

from tests.versions.collected_world import World
from tests.versions.test_poison import asked, poison, put_on_list
from tracelake._errors import DamageError, UsageError
from tracelake.storage import Entry
from tracelake.versions.branch_store import BranchRecords
from tracelake.versions.committer import _Building
from tracelake.versions.model import Change, SealedRequest


def test_what_was_acknowledged_stays_below_what_was_not() -> None:
    """An acknowledged entry is committed although a late writer put an entry without a file above it."""
    world = World()
    late = world.file("late")
    world.collect()
    world.collect()
    world.repository.stage({"f": (kept := world.file("acknowledged"))})
    put_on_list(world.repository, poison(staged=True))
    world.collect()
    BranchRecords(world.key_value).stage(world.repository.branch().staging, "f", late)
    world.repository.drop_request("poison")
    assert world.repository.entries(world.repository.commit_staged(allow_empty=True)) == {"f": kept}
    world.check()


def committed_meanwhile(world: World) -> None:
    """Commit a request just when the entries staged for it were staged again."""
    restage = world.repository._records.restage

    def overtaken(token: str, to: str) -> list[Entry]:
        carried = restage(token, to)
        world.opened().commit_entries({"other": world.file("other")}, message="finishes what is sealed")
        return carried

    vars(world.repository._records)["restage"] = overtaken


def test_what_was_committed_when_it_was_to_be_dropped_is_not_staged_again() -> None:
    """Entries committed in the meantime are not staged again; otherwise a later commit would revert them."""
    world = World()
    world.repository.stage({"f": world.file("first")})
    put_on_list(world.repository, asked("slow", Change(staged=True)))
    world.repository.stage({"g": (kept := world.file("kept"))})
    committed_meanwhile(world)
    with pytest.raises(UsageError, match="no request 'slow' on its list"):
        world.repository.drop_request("slow")
    assert world.opened().staged() == (("g", kept),)
    world.opened().commit_entries({"f": (second := world.file("second"))})
    assert world.opened().entries(world.opened().commit_staged())["f"] == second


def test_what_another_helper_committed_is_not_staged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one helper cannot read a request's objects and another one commits it, the commit counts."""
    world = World()
    world.repository.commit_entries({"a": world.file("a")})
    world.repository.stage({"f": (first := world.file("first"))})
    put_on_list(world.repository, asked("slow", Change(staged=True)))
    committed_meanwhile(world)
    make = _Building._make

    def fails_once(_: _Building, sealed: SealedRequest) -> object:
        monkeypatch.setattr(_Building, "_make", make)
        why = f"for {sealed.request.id} only"
        raise DamageError(why)

    monkeypatch.setattr(_Building, "_make", fails_once)
    head = world.repository.commit_entries({"b": world.file("b")})
    assert world.opened().entries(head)["f"] == first
    assert world.opened().staged() == ()
