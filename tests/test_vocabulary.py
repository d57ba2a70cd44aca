"""Names and prose in the field's words: figures that may only fall, and words that never return."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from scripts import figures, imports, plain_english
from scripts.plain_english import ROOT

DOCS_DENSITY_MAX = 0.5
SOURCE_DENSITY_MAX = 0.5
TESTS_DENSITY_MAX = 0.3
LONG_SENTENCES_MAX = 2.5
"""Per cent of the sentences of pages that have more than 30 words."""
DOCS_WORDS_MAX = 70_000
"""Words of all pages."""
EVERYDAY_NAMES_MAX = 49
"""Names in the source that are participles or everyday words. Lower it with each rename."""

BANNED_CLASSES = {
    "told",
    "tell",
    "stands",
    "standing",
    "taken",
    "held",
    "begun",
    "beside",
    "fates",
    "hearing",
    "rooms",
}
BANNED_NAMES = {
    *(
        "told",
        "tell",
        "stands",
        "standing",
        "taken",
        "held",
        "begun",
        "beside",
        "near",
        "ahead",
        "aside",
        "apart",
    ),
    *(
        "asked",
        "heard",
        "hearing",
        "looks",
        "lookout",
        "left",
        "kept",
        "known",
        "wanted",
        "given",
        "some",
        "few",
    ),
    *(
        "many",
        "together",
        "alone",
        "again",
        "anew",
        "whole",
        "meant",
        "said",
        "let_go",
        "give_up",
        "went_well",
    ),
    *("goes_on", "is_ours", "into", "of", "by", "fate"),
}
"""Words that never name a thing: a noun of the field does."""
BANNED_NAMES_MAX = 590
"""Names of functions, classes, parameters, variables and attributes that are one of these. The number only falls."""
NOUNS_IN_ING = {
    *("framing", "pruning", "staging", "testing", "parsing", "batching", "batch_sizing"),
    *("tracking", "key_ring"),
}
"""Modules in -ing whose names are nouns of the field."""
VOCABULARY = Path(__file__).with_name("vocabulary.txt")
"""All words of the names of modules, classes and public functions, one a line, in order."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_QUESTION = re.compile(r"(What|Who|Which|Where|How|Whoever|Whatever)\b")


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the docstrings of modules, classes and functions with their place."""
    for file in imports.files():
        for node in ast.walk(imports.tree(file)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{file}: {getattr(node, 'name', 'module')}", ast.get_docstring(node) or ""


def test_habits_of_prose_only_fall() -> None:
    """Pages, docstrings and comments keep to plain English (see `python -m scripts.plain_english`)."""
    paths = plain_english.files(ROOT)
    docs = plain_english.measure(plain_english.pages(paths, ROOT))
    assert docs.density <= DOCS_DENSITY_MAX, docs.worst[:5]
    assert docs.long_share <= LONG_SENTENCES_MAX
    assert figures.words_of_docs() <= DOCS_WORDS_MAX
    for area, most in (("src", SOURCE_DENSITY_MAX), ("tests", TESTS_DENSITY_MAX)):
        found = plain_english.measure(plain_english.code(paths, ROOT, area))
        assert found.density <= most, found.worst[:5]


def test_everyday_names_only_fall() -> None:
    """A name says what a thing is, not how it came."""
    counted = plain_english.everyday_names(plain_english.files(ROOT), ROOT, "src")
    assert counted.total() <= EVERYDAY_NAMES_MAX, counted.most_common(10)


def test_modules_are_named_by_nouns() -> None:
    """No module ends in -ing, except nouns of the field."""
    stems = {file.rpartition("/")[2].removesuffix(".py") for file in imports.files()}
    # Migrations never change.
    assert {stem for stem in stems if stem.endswith("ing")} <= NOUNS_IN_ING | {"copying"}


def test_classes_are_named_in_the_words_of_the_field() -> None:
    """No class has one of the former everyday names."""
    names = {
        node.name
        for file in imports.files()
        for node in ast.walk(imports.tree(file))
        if isinstance(node, ast.ClassDef)
    }
    assert {name for name in names if name.strip("_").lower() in BANNED_CLASSES} == set()


def assigned_names() -> Iterator[str]:
    """Yield each name where a function, class, parameter, variable or attribute gets it."""
    for file in imports.files():
        for node in ast.walk(imports.tree(file)):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    yield name
                case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                    yield name
                case ast.Attribute(attr=name, ctx=ast.Store()):
                    yield name


def test_banned_names_only_fall() -> None:
    """A word of everyday language is no name, wherever it is given."""
    counted = Counter(name.strip("_").lower() for name in assigned_names())
    banned = Counter({name: number for name, number in counted.items() if name in BANNED_NAMES})
    assert banned.total() <= BANNED_NAMES_MAX, banned.most_common(10)


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """No docstring begins with a question word."""
    assert [place for place, text in docstrings() if _QUESTION.match(text)] == []


def named() -> Iterator[tuple[str, str]]:
    """Yield the names of modules, classes and public functions, with their files."""
    for file in imports.files():
        yield file, file.rpartition("/")[2].removesuffix(".py")
        for node in ast.walk(imports.tree(file)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
                isinstance(node, ast.ClassDef) or not node.name.startswith("_")
            ):
                yield file, node.name


def test_names_use_the_vocabulary() -> None:
    """A new word of a name is a new line of vocabulary.txt, for a reviewer to see; unused words leave it."""
    used = {word.lower(): file for file, name in named() for word in _WORD.findall(name)}
    allowed = VOCABULARY.read_text("utf-8").split()
    assert allowed == sorted(allowed)
    assert {word: file for word, file in used.items() if word not in allowed} == {}, (
        "add it, or a plainer name"
    )
    assert sorted(set(allowed) - used.keys()) == [], "no name has these words any more"
