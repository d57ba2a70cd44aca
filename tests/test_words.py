"""One word for one thing: the glossary has each once, and its banned synonyms stay out of code, help and docs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from scripts import imports

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
SOURCE = ROOT / "src"
TEXTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),  # the help of every command is in the modules of the CLI
    *sorted(SOURCE.rglob("*.py")),
    *sorted(SOURCE.rglob("*.html")),
]
NO_NOUNS = {"found", "made", "named", "got", "came", "went"}
"""Names of locals that show how a value came, not its meaning."""


def rows(section: str) -> list[tuple[str, str]]:
    """Return the rows of the tables in a part of the glossary, without their headers."""
    cells = re.findall(r"^\| (.+?) \| (.+?) \|$", section, flags=re.MULTILINE)
    return [row for row in cells if row != ("word", "meaning")]


MEANINGS = rows(GLOSSARY.read_text(encoding="utf-8"))
BANNED: Final = {
    "blacklist": "refuse",
    "came and went": "were inserted and retracted",
    "data lake": "lake",
    "he": "it, for a program",
    "him": "it, for a program",
    "himself": "itself, for a program",
    "his": "its, for a program",
    "ledger": "journal",
    "master branch": "main",
    "micro-transaction": "transaction",
    "row that came": "row that was inserted",
    "row that went": "row that was retracted",
    "rows came": "rows were inserted",
    "rows that came": "rows that were inserted",
    "rows that went": "rows that were retracted",
    "rows went": "rows were retracted",
    "sub-task": "task",
    "trace store": "lake",
    "upkeep": "maintenance",
    "whitelist": "allow",
}
"""Words that stay out of code, help and docs, each with the word that is used."""


@cache
def texts(file: Path) -> str:
    """Return a file's text with compound names split: `dead_letter` and `DeadLetter` are dead letters, too."""
    text = file.read_text(encoding="utf-8")
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text) if file.suffix == ".py" else text
    return re.sub(r"[_\s-]+", " ", text).lower()


def locals_of(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the names that a module gives to values and arguments, except fields of records."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    fields = {node.target for each in classes for node in each.body if isinstance(node, ast.AnnAssign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.MatchAs) and node.name:
            yield node.name, node.lineno


def test_every_word_stands_once() -> None:
    """Each word has one meaning in the glossary; a word with two has a qualifier in brackets."""
    words = Counter(word for entry, _ in MEANINGS for word in entry.split(", "))
    assert [word for word, count in words.items() if count > 1] == []
    assert len(words) > 100


def test_words_are_in_order() -> None:
    """The words of each glossary table are in alphabetical order."""
    for section in GLOSSARY.read_text(encoding="utf-8").split("\n## ")[1:]:
        words = [word.lower() for word, _ in rows(section)]
        assert words == sorted(words)


def test_no_banned_word_is_explained() -> None:
    """No banned word has an entry in the glossary."""
    assert {entry for entry, _ in MEANINGS} & BANNED.keys() == set()


def test_banned_words_stay_out() -> None:
    """No page, help text, comment or name in the code has a banned word."""
    strays = []
    for word, instead in BANNED.items():
        pattern = re.compile(rf"\b{re.escape(word.replace('-', ' '))}(s|d|ed|ing)?\b")
        strays += [
            f"{file.relative_to(ROOT)} says {word!r}: say {instead!r}"
            for file in TEXTS
            if pattern.search(texts(file))
        ]
    assert strays == []


def test_names_are_nouns_for_what_they_hold() -> None:
    """A local is named for its content; `found`, `made` and `named` only show how it came."""
    strays = [
        f"{file.relative_to(SOURCE)}:{line}: {name}"
        for file in sorted((SOURCE / "tracelake").rglob("*.py"))
        for name, line in locals_of(file)
        if name in NO_NOUNS
    ]
    assert strays == []


def test_a_class_has_its_name_alone() -> None:
    """No two public classes of the packages have the same name, so a name means the same in every file."""
    names = Counter(
        node.name
        for file in imports.files()
        for node in imports.tree(file).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
