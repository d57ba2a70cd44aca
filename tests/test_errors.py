"""Errors: one class tree in one file, exported and documented, with HTTP statuses and exit codes; internal signals."""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import pickle
import re
from collections.abc import Iterator

import pytest

import tracelake
from scripts import imports, reference
from tracelake import _errors
from tracelake._errors import (
    ConflictError,
    ContentionError,
    DamagedRecordsError,
    DamageError,
    DeathsError,
    LimitError,
    NotFoundError,
    NothingToCommitError,
    QueryError,
    QuotaError,
    TaskError,
    TracelakeError,
    UnreadInputsError,
)
from tracelake.pipeline.input_failures import may_be_of_input
from tracelake.server.http_policy import status_of
from tracelake.storage.ports import Entry

KINDS = reference.errors()
MADE: list[TracelakeError] = [
    ConflictError("main", ("a", "b")),
    NothingToCommitError("main", "abc"),
    DamagedRecordsError([Entry("k", b"v", "1")], [("bad", DamageError("torn"))]),
    TaskError("it failed", kind="ValueError", ended=True),
    DeathsError(3, "did transaction 1"),
    QueryError("a value is missing", 8),
    UnreadInputsError("no answer"),
    QuotaError("used up", 2.5),
    *(kind("why") for kind in KINDS if "__init__" not in vars(kind)),
]


def exceptions() -> dict[str, str]:
    """Return each exception class that the packages define, with its file."""
    known = {
        name
        for name, kind in vars(builtins).items()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    }
    classes = [
        (node.name, {ast.unparse(base).rpartition(".")[2] for base in node.bases}, file)
        for file in imports.files()
        for node in ast.walk(imports.tree(file))
        if isinstance(node, ast.ClassDef)
    ]
    found: dict[str, str] = {}
    while new := {
        name: file for name, bases, file in classes if name not in found and bases & (known | found.keys())
    }:
        assert not new.keys() & found.keys(), "two exceptions have one name"
        found |= new
    return found


def room(file: str) -> str:
    """Return the package of a file."""
    return imports.room_of(imports.module_of(file))


def caught(file: str) -> Iterator[str]:
    """Yield the names of the exceptions that a file catches."""
    for node in ast.walk(imports.tree(file)):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            yield from (each.id for each in ast.walk(node.type) if isinstance(each, ast.Name))


def test_the_file_opens_with_the_whole_tree() -> None:
    """The docstring of the file shows the whole tree: every class, below its first base, in the order of the file."""
    lines = inspect.getdoc(_errors).splitlines()  # type: ignore[union-attr]
    drawn = [
        re.sub(r"(Error)\b.*", r"\1", line) for line in lines if re.search(r"── |^TracelakeError$", line)
    ]
    assert "\n".join(drawn) == reference.errors_tree()


def test_all_are_public_and_documented() -> None:
    """Every error is exported by `tracelake` with a docstring; errors.md is generated from them and has all."""
    assert [kind.__name__ for kind in KINDS if kind.__name__ not in tracelake.__all__] == []
    assert [kind.__name__ for kind in KINDS if "__doc__" not in vars(kind)] == []
    assert [kind.__name__ for kind in KINDS if f"| `{kind.__name__}` |" not in reference.errors_page()] == []


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_errors_cross_processes(error: TracelakeError) -> None:
    """A pickled or copied error keeps its class, message and fields."""
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (type(again), str(again), again.args) == (type(error), str(error), error.args)
        assert repr(vars(again)) == repr(vars(error))


def test_every_class_is_pickled_above() -> None:
    """A new error with a custom constructor must be added to the list of the pickling test."""
    assert {type(error) for error in MADE} == set(KINDS)


SIGNALS = {name: file for name, file in exceptions().items() if room(file) not in {"_errors", "testing"}}
"""Exceptions that a package uses internally as signals; those of `testing` are for tests."""


def test_exceptions_are_found() -> None:
    """The helper of the next tests finds every error, and subclasses of subclasses."""
    assert {kind.__name__ for kind in KINDS} <= exceptions().keys()
    assert {"WireError", "_UnconditionalError", "OvertakenError", "Crashed"} <= exceptions().keys()


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_never_leaves_its_room(name: str) -> None:
    """An exception outside the tree is used in its own package only, and caught there, directly or by its base."""
    own = room(SIGNALS[name])
    naming = {room(file) for file in imports.files() if re.search(rf"\b{name}\b", imports.text(file))}
    assert naming == {own}
    inside = {each for file in imports.files() if room(file) == own for each in caught(file)}
    bases = {
        ast.unparse(base)
        for node in ast.walk(imports.tree(SIGNALS[name]))
        if isinstance(node, ast.ClassDef) and node.name == name
        for base in node.bases
    }
    assert not bases & {kind.__name__ for kind in KINDS}, "an error of the tree stands in _errors.py"
    assert name in inside or bases & SIGNALS.keys() & inside


def test_every_not_found_is_one() -> None:
    """One class catches all not-found errors, and each is a 404 over HTTP."""
    missing = [kind for kind in KINDS if issubclass(kind, NotFoundError)]
    assert len(missing) == 6
    assert all(issubclass(kind, NotFoundError) and status_of(kind) == 404 for kind in missing)
    assert [kind for kind in KINDS if status_of(kind) == 404] == missing


def test_a_lost_race_is_not_too_large() -> None:
    """Contention is a temporary failure that may be retried; a limit is neither."""
    assert not issubclass(ContentionError, LimitError)
    assert (status_of(ContentionError), status_of(LimitError)) == (503, 413)


@pytest.mark.parametrize("kind", [ContentionError, DamagedRecordsError, NotFoundError])
def test_what_no_input_can_do_is_not_of_the_input(kind: type[TracelakeError]) -> None:
    """A task failure that no input can cause, which Spark reports by class name, quarantines no input."""
    assert not may_be_of_input(TaskError("it failed", kind=f"tracelake._errors.{kind.__name__}"))
    assert may_be_of_input(TaskError("it failed", kind="OverflowError"))
