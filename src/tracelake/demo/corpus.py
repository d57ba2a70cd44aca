"""Python's own documentation as passages: the docstrings of modules, functions, classes and methods."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

_MODULES: Final = (
    "argparse array base64 bisect calendar collections contextlib copy csv dataclasses datetime decimal "
    "difflib enum fileinput fnmatch fractions functools glob gzip hashlib heapq hmac html io itertools "
    "json linecache logging math operator os os.path pathlib pickle pprint queue random re sched secrets "
    "shelve shlex shutil socket sqlite3 statistics string struct subprocess tempfile textwrap threading "
    "time timeit tokenize traceback types unicodedata urllib.parse uuid warnings weakref zipfile "
    "zlib"
)
MODULES: Final = tuple(_MODULES.split())
"""Modules of the standard library that every platform has and whose import does nothing visible."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One paragraph of a docstring, and the dotted name of what it documents."""

    name: str
    text: str


def passages(modules: tuple[str, ...] = MODULES) -> list[Passage]:
    """Return every paragraph of the public documentation of `modules`, in a stable order."""
    return [
        Passage(name, paragraph)
        for name, doc in _documented(modules)
        for paragraph in re.split(r"\n\s*\n", doc)
        if len(paragraph.split()) >= 4
    ]


def _documented(modules: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, docstring) of modules and of what is public in them, two levels deep."""
    for module_name in modules:
        module = importlib.import_module(module_name)
        yield from _doc(module_name, module)
        for name, value in _public(module):
            yield from _doc(f"{module_name}.{name}", value)
            if inspect.isclass(value):
                for member, method in _public(value):
                    yield from _doc(f"{module_name}.{name}.{member}", method)


def _doc(name: str, value: Any) -> Iterator[tuple[str, str]]:
    doc = inspect.getdoc(value)
    if doc:
        yield name, doc


def _public(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield what can be called in `owner` and is not hidden."""
    for name, value in sorted(vars(owner).items()):
        if not name.startswith("_") and callable(value) and not inspect.ismodule(value):
            yield name, value
