"""Public names are exported, documented with their signature, and refer only to public names."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pkgutil
import re
import types
from collections.abc import Iterator
from typing import Any

import msgspec

import pyspark_tracelake
import tracelake
import tracelake.spark
import tracelake.testing
from scripts import imports, reference

PAGE = reference.complete_python_page()
CODE = re.findall(r"`([^`\n]+)`", PAGE)
WORDS = {word for code in CODE for word in re.findall(r"\w+", code)}
MODULES = (tracelake, tracelake.spark, tracelake.testing, pyspark_tracelake)
EXPORTS = {name: getattr(tracelake, name) for name in tracelake.__all__}
ERRORS = {kind.__name__ for kind in reference.errors()}
CLASSES = {name: kind for name, kind in EXPORTS.items() if isinstance(kind, type) and name not in ERRORS}
WITHIN = {"Provenance"}
"""Records that the table row of another record describes."""
OF_ALL = {"annotations"}
"""Names that every module with `from __future__ import annotations` has."""


def callables() -> Iterator[tuple[str, Any]]:
    """Yield each public function, and method of a public class, by its name."""
    for name, each in EXPORTS.items():
        if isinstance(each, types.FunctionType):
            yield name, each
    for owner, kind in CLASSES.items():
        for name, member in reference.members(kind).items():
            if isinstance(member, types.FunctionType):
                yield f"{owner}.{name}", member


def test_what_is_public_is_exported_and_documented() -> None:
    """Each public name is in its module's `__all__` or a package, and the page has it."""
    for module in MODULES:
        rooms = {each.name for each in pkgutil.iter_modules(getattr(module, "__path__", []))}
        public = {name for name in vars(module) if not name.startswith("_")}
        exported = set(module.__all__)
        assert public - exported - rooms - OF_ALL == set(), module
        assert [name for name in exported if getattr(module, name, None) is None] == [], module
        assert exported - WORDS - ERRORS - {"DefaultSource"} == set(), module
        assert list(module.__all__) == sorted(module.__all__), module


def test_the_short_page_has_every_call() -> None:
    """The page in the repository has each export, and each call that its sections describe."""
    page = reference.python_page()
    names = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", page))))
    assert set(tracelake.__all__) - names - ERRORS - {"InProcess", "TaskRunner"} == set()
    omitted = {"InProcess", "TaskRunner"}
    missing = [
        name
        for name, _ in callables()
        if not omitted & {*name.split(".")} and name.split(".")[-1] not in names
    ]
    records = {
        name
        for name, kind in CLASSES.items()
        if dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)
    }
    assert [name for name in missing if name.split(".")[0] not in records] == []


def test_every_member_is_documented() -> None:
    """Each public member is on the page, those of a record in its table row; others begin with an underscore."""
    missing = []
    for name, kind in CLASSES.items():
        row = re.search(rf"^\| `{name}` \| (.*) \|$", PAGE, flags=re.MULTILINE)
        is_record = dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)
        if row is None and is_record and name not in WITHIN:
            missing.append(name)
        words = WORDS if row is None else set(re.findall(r"\w+", row[1]))
        missing += [f"{name}.{member}" for member in reference.members(kind).keys() - words]
    assert missing == []


def test_signatures_are_documented() -> None:
    """A call on the page has the function's parameters: names, order, defaults."""
    missing = []
    for name, function in callables():
        last = name.rpartition(".")[2]
        pattern = re.compile(rf"(?<!\w){last}\((.*?)\)(?= ->|, \w+\(|$)")
        calls = {call[1] for code in CODE for call in pattern.finditer(code)}
        parameters = [
            each.replace(annotation=each.empty)
            for each in inspect.signature(function).parameters.values()
            if each.name != "self"
        ]
        signature = str(inspect.Signature(parameters))[1:-1]
        signature = re.sub(r"<function .*? at \w+>", "…", signature).replace("'", '"')
        if signature not in calls:
            missing.append(f"{name}({signature})")
    assert missing == []


def test_what_is_public_refers_to_what_is_public() -> None:
    """The types of parameters, results and fields are exported as well, or the page names their module."""
    ours = {
        node.name
        for file in imports.files()
        for node in ast.walk(imports.tree(file))
        if isinstance(node, ast.ClassDef)
    }
    strays = {
        (owner, name)
        for owner, hint in hints()
        for name in re.findall(r"(?<![\w.])\w+\b(?!\.)", hint)
        if name in ours and name not in EXPORTS and not re.search(rf"`tracelake\.[\w.]+\.{name}`", PAGE)
    }
    assert strays == set()


def hints() -> Iterator[tuple[str, str]]:
    """Yield the annotations of public functions, methods, properties and fields, as text."""
    functions = dict(callables())
    for name, kind in CLASSES.items():
        for member, value in reference.members(kind).items():
            if isinstance(value, property) and value.fget is not None:
                functions[f"{name}.{member}"] = value.fget
        for field, hint in inspect.get_annotations(kind).items():
            if not field.startswith("_"):
                yield f"{name}.{field}", str(hint)
    for name, function in functions.items():
        yield from ((name, str(hint)) for hint in inspect.get_annotations(function).values())
