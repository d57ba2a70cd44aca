"""Text that is not valid Unicode, in every public call with a text: an error message, or an unknown name."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest

import tracelake
from tracelake import Lake, TracelakeError
from tracelake.tasks.runners import InProcess

ODD: Final = ("\ud800", "a\udce9b")
"""The first has no encoding; the second is Python's form of a path byte that is not UTF-8."""
ENDLESS: Final = frozenset({"compact_forever", "listen"})


def parts(lake: Lake) -> Iterator[tuple[str, object]]:
    """Yield a lake and its components, by name."""
    yield "lake", lake
    for name in dir(type(lake)):
        is_part = isinstance(inspect.getattr_static(type(lake), name), property | cached_property)
        if is_part and not name.startswith("_"):
            yield f"lake.{name}", getattr(lake, name)
    yield "table", lake.table("spans")


def has_text(annotation: Any) -> bool:
    """Return whether a parameter accepts a text."""
    return annotation is str or any(has_text(each) for each in typing.get_args(annotation))


def resolved_hints(method: Any) -> dict[str, Any]:
    """Return the annotations of a method by parameter, except types that its module imports for annotations only."""
    hints = {}
    for name, annotation in getattr(method, "__annotations__", {}).items():
        with suppress(NameError):
            hints[name] = eval(annotation, method.__globals__) if isinstance(annotation, str) else annotation
    return hints


def value(annotation: Any) -> Any:
    """Return a harmless argument for a parameter."""
    if annotation is str:
        return "none"
    return {int: 1, float: 1.0, bool: False}.get(annotation)


def calls(part: object) -> Iterator[tuple[str, Callable[[str], object]]]:
    """Yield each way to pass one text to a public method."""
    for name, method in inspect.getmembers(part, inspect.ismethod):
        if name.startswith("_") or name in ENDLESS or name == "close":
            continue
        hints = resolved_hints(method)
        parameters = inspect.signature(method).parameters.values()
        for given in parameters:
            if not has_text(hints.get(given.name)) or given.name in ("master", "replica"):
                continue

            def call(
                text: str,
                given: str = given.name,
                method: Any = method,
                of: Any = tuple(parameters),
                hints: Any = hints,
            ) -> object:
                positional: list[Any] = []
                named: dict[str, Any] = {}
                for each in of:
                    chosen = text if each.name == given else value(hints.get(each.name))
                    if each.kind is each.VAR_POSITIONAL:
                        positional += [text] if each.name == given else []
                    elif each.name == "runner":
                        named[each.name] = InProcess()
                    elif each.kind is not each.VAR_KEYWORD and (
                        each.name == given or each.default is each.empty
                    ):
                        named[each.name] = chosen
                if positional:
                    return method(*positional, **named)
                return method(**named)

            yield f"{name}({given.name})", call


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Return a lake with a hot tier."""
    with tracelake.init(tmp_path_factory.mktemp("odd") / "lake", buckets=2) as opened:
        opened.hot.set_up()
        yield opened


def test_text_that_is_no_unicode_is_refused_in_words(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No public call fails with an internal error, and every error message can be encoded."""
    monkeypatch.chdir(tmp_path)  # some of the texts are valid names of directories
    tried, failed = 0, []
    for where, part in parts(lake):
        for name, call in calls(part):
            for odd in ODD:
                tried += 1
                try:
                    call(odd)
                except TracelakeError as error:
                    if not is_text(str(error)):
                        failed.append(f"{where}.{name}: says {error!r}")
                except UnicodeError as error:
                    failed.append(f"{where}.{name}: {error!r}")
                except (TypeError, AttributeError, ValueError):
                    pass  # the stand-ins for its other parameters
    assert not failed, "\n".join(failed)
    assert tried > 150


def is_text(text: str) -> bool:
    """Return whether a text can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
