"""Count habits that make prose hard to read, in pages, docstrings, comments and names.

`python -m scripts.plain_english [--show N] [--kind docs|code|names] [--changed REVISION]` prints figures for each kind
of text and the worst places. `tests/test_vocabulary.py` lets the figures only fall. The count is a guide: a rare hit
may be right, and a text without one may still be unclear.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

_VERBS: Final = (
    r"is|are|has|have|had|was|were|takes?|waits?|comes?|came|asks?|goes|does|did|stands?|begins?|ends?|wants?|makes?"
    r"|reads?|writes?|knows?|needs?"
)
PATTERNS: Final = {
    "nominal what/who": re.compile(
        r"(?:(?<=[.;:] )|^|(?<=, )|(?<=and )|(?<=of )|(?<=for )|(?<=to )|(?<=with )|(?<=by ))"
        r"(?:[Ww]ho|[Ww]hoever|[Ww]hat|[Ww]hatever)\s+(?:\w+\s+){0,4}?(?:" + _VERBS + r")\b"
    ),
    "told / is said": re.compile(r"\b(?:is|are|was|were|be|been)\s+(?:told|said)\b|\btells? (?:of|so)\b"),
    "of its own": re.compile(r"\bof (?:its|their|his|her|our) own\b"),
    "else:": re.compile(r"\*?\b[Ee]lse\*?:"),
    "somebody/nobody": re.compile(
        r"\b(?:[Nn]obody|[Ss]omebody|[Aa]nybody|[Nn]one (?:of|has|is)|[Ee]verybody)\b"
    ),
    "that is/are there": re.compile(r"\b(?:is|are|be) there\b(?! (?:a|an|any|no|more)\b)"),
    "is to / are to": re.compile(
        r"\b(?:is|are|was|were) to (?:be|have|take|make|do|give|go|read|stop|know)\b"
    ),
    "for (because)": re.compile(
        r", for (?:the|a|an|it|its|they|there|no|each|what|who|all|one|some|nobody|then|each)\b"
    ),
    "meanwhile/till/thereby": re.compile(
        r"\b(?:till|meanwhile|thereby|whereby|thereof|hereafter|by then|where it is)\b"
    ),
    "stands / lies": re.compile(r"\b(?:stands?|stood|lies) (?:in|at|on|there|beside|before|behind|below)\b"),
    "inverted (Of a/an/the …, )": re.compile(
        r"(?:(?<=[.;:] )|^)(?:Of|Where|With|Behind|Beside) [a-z][^.,;]{3,60}, (?:the|a|an|it|all|one"
        r"|none|some|only|those|that)\b"
    ),
    "man/people as process": re.compile(r"\b(?:he|him|his|himself)\b"),
}
"""Each habit and its pattern."""
PARTICIPLE: Final = re.compile(
    r"^_?(?:[a-z0-9]+_)*(?:told|said|heard|made|found|taken|given|asked|left|kept|begun"
    r"|gone|came|held|known|seen|done|named|noted|stood|stands|wish|fate|near|beside|aside|ahead|whole|within|anew|rest|lot|so|thus)s?$"
)
"""Participles and everyday words that say how a value came, not what it is."""


SKIPPED: Final = {".venv", ".git", ".tools", "node_modules", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Measure:
    """The habits of some texts."""

    words: int
    sentences: int
    long_sentences: int
    """Sentences of more than 30 words."""
    habits: Counter[str]
    worst: list[tuple[int, str, str]]
    """Texts with their place and number of habits, the worst first."""

    @property
    def density(self) -> float:
        """Return the number of habits in 1,000 words."""
        return 1000 * self.habits.total() / max(self.words, 1)

    @property
    def long_share(self) -> float:
        """Return the share of long sentences, in per cent."""
        return 100 * self.long_sentences / max(self.sentences, 1)


def sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph, with one `x` for each piece of code."""
    text = re.sub(r"`[^`]*`", "x", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
    return [part.strip() for part in re.split(r"(?<=[.!?])\s+(?=[A-Z*`\[])", text) if part.strip()]


def paragraphs(markdown: str) -> list[str]:
    """Return the paragraphs and list items of a page, without code, tables and headings."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\|.*$|^#.*$|^<!--.*?-->$", "\n", text, flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    return [" ".join(block.split()) for block in blocks if block.strip()]


def code_texts(source: str) -> list[str]:
    """Return the paragraphs of docstrings, and the comments."""
    texts = []
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            texts += [" ".join(part.split()) for part in re.split(r"\n\s*\n", node.value.value)]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            texts.append(token.string.lstrip("# "))
    return [text for text in texts if len(text) > 12]


def names(path: Path) -> list[str]:
    """Return the names that a module gives: its own, and those of functions, classes, arguments and variables."""
    found = [path.stem]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(node.name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found += [argument.arg for argument in node.args.args + node.args.kwonlyargs]
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append(node.id)
    return found


def measure(texts: Iterable[tuple[str, str]]) -> Measure:
    """Measure texts, each given with its place."""
    habits: Counter[str] = Counter()
    worst = []
    words = count = long_sentences = 0
    for place, text in texts:
        hits = {name: len(pattern.findall(text)) for name, pattern in PATTERNS.items()}
        habits.update(hits)
        lengths = [len(sentence.split()) for sentence in sentences(text)]
        words += sum(lengths)
        count += len(lengths)
        long_sentences += sum(length > 30 for length in lengths)
        worst.append((sum(hits.values()), place, text))
    return Measure(words, count, long_sentences, habits, sorted(worst, key=lambda row: -row[0]))


def files(root: Path, changed: str | None = None) -> list[Path]:
    """Return the pages and modules below a directory; with a revision, only those that differ from it."""
    every = [
        path for path in root.rglob("*") if path.suffix in {".md", ".py"} and not SKIPPED & set(path.parts)
    ]
    if changed is None:
        return every
    command = ["git", "-C", str(root), "diff", "--name-only", "--diff-filter=d", changed]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [path for path in every if path in {root / line for line in lines}]


def pages(paths: Iterable[Path], root: Path) -> Iterator[tuple[str, str]]:
    """Yield the paragraphs of pages with their place."""
    for path in paths:
        if path.suffix == ".md":
            for block in paragraphs(path.read_text("utf-8")):
                yield str(path.relative_to(root)), block


def code(paths: Iterable[Path], root: Path, area: str) -> Iterator[tuple[str, str]]:
    """Yield the docstrings and comments of the modules in a directory, with their place."""
    for path in paths:
        if path.suffix == ".py" and path.relative_to(root).parts[0] == area:
            for text in code_texts(path.read_text("utf-8")):
                yield str(path.relative_to(root)), text


def everyday_names(paths: Iterable[Path], root: Path, area: str) -> Counter[str]:
    """Count the names in a directory that are participles or everyday words."""
    modules = [path for path in paths if path.suffix == ".py" and path.relative_to(root).parts[0] == area]
    return Counter(name for path in modules for name in names(path) if PARTICIPLE.match(name))


def report(kind: str, found: Measure, show: int) -> None:
    """Print the figures of a kind of text, and its worst places."""
    print(
        f"{kind}: {found.words:,} words, {found.sentences:,} sentences; {found.density:.1f} habits per 1,000 words; "
        f"{found.long_share:.1f} % of sentences over 30 words"
    )
    for name, number in found.habits.most_common():
        print(f"  {number:6,}  {name}")
    for number, place, text in found.worst[:show]:
        print(f"  [{number}] {place}: {text[:300]}")


def main() -> None:
    """Print the figures of the working tree."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("root", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--show", type=int, default=5, help="how many of the worst places to print")
    parser.add_argument("--kind", choices=("docs", "code", "names"))
    parser.add_argument("--changed", metavar="REVISION", help="only files that differ from this revision")
    options = parser.parse_args()
    root: Path = options.root.resolve()
    paths = files(root, options.changed)
    if options.kind in {None, "docs"}:
        report("docs", measure(pages(paths, root)), options.show)
    for area in ("src", "tests"):
        if options.kind in {None, "code"}:
            report(f"docstrings and comments in {area}", measure(code(paths, root, area)), options.show)
        if options.kind in {None, "names"}:
            counted = everyday_names(paths, root, area)
            print(
                f"everyday names in {area}: {counted.total():,} uses of {len(counted)}: "
                + ", ".join(f"{name} {number}" for name, number in counted.most_common(30))
            )


if __name__ == "__main__":
    main()
