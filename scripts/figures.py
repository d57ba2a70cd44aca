"""Print the figures of the repository: sizes, fragmentation, prose, tests.

`python -m scripts.figures [--run]`; with `--run`, also count the files that one request enters until its spans are
committed.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Final

from scripts import imports, plain_english

ROOT: Final = Path(__file__).resolve().parents[1]
TESTS: Final = ROOT / "tests"
NAMESPACES: Final = ("__init__.py", "__main__.py")


def modules() -> dict[str, int]:
    """Return the lines of each module; an empty `__init__` is none."""
    return {
        file: len(imports.text(file).splitlines()) for file in imports.files() if imports.text(file).strip()
    }


def only_importers() -> dict[str, str]:
    """Return the modules that exactly one other module of the same package imports, and that module."""
    importers: dict[str, set[str]] = {file: set() for file in imports.files()}
    for arrow in imports.arrows():
        if (file := imports.modules()[arrow.module]) != arrow.file:
            importers[file].add(arrow.file)
    return {
        file: next(iter(others))
        for file, others in importers.items()
        if len(others) == 1
        and not file.endswith(NAMESPACES)
        and _package(file) == _package(next(iter(others)))
    }


def _package(file: str) -> str:
    return imports.room_of(imports.module_of(file))


def import_lines() -> int:
    """Count the lines of all import statements."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for file in imports.files()
        for node in ast.walk(imports.tree(file))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def private_accesses() -> int:
    """Count the accesses of tests to private members of other objects than `self` and `cls`."""
    return sum(
        isinstance(node, ast.Attribute)
        and re.match(r"_[a-z]", node.attr) is not None
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
        for path in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    )


def mutants() -> int:
    """Count the mutants that edit a syntax tree."""
    return sum(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Mutation"
        for path in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    )


def words_of_docs() -> int:
    """Count the words of all pages."""
    return sum(len(path.read_text("utf-8").split()) for path in (ROOT / "docs").rglob("*.md"))


@contextmanager
def entered() -> Iterator[Counter[str]]:
    """Count the calls into each of our files."""
    calls: Counter[str] = Counter()
    source = str(ROOT / "src")

    def note(frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        if event == "call" and frame.f_code.co_filename.startswith(source):
            calls[frame.f_code.co_filename.removeprefix(f"{source}/")] += 1
        return None

    import threading  # noqa: PLC0415  only a run needs it

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def files_of_a_request() -> int:
    """Return how many files one small request enters, from its bytes to the commit of its spans."""
    import tracelake  # noqa: PLC0415  only a run needs it
    from tests.pipeline.poison import good  # noqa: PLC0415
    from tracelake.tasks.runners import InProcess  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder, tracelake.init(f"{folder}/lake", buckets=2) as lake:
        lake.objects.put("inbox/0.segment", good(0))
        lake.pipeline(runner=InProcess()).run_once()
        lake.objects.put("inbox/1.segment", good(1))
        time.sleep(0.01)
        with entered() as calls:
            lake.pipeline(runner=InProcess()).run_once()
        return len(calls)


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--run", action="store_true", help="also count the files that one request enters")
    options = parser.parse_args()
    sizes = modules()
    lines = sum(sizes.values())
    paths = plain_english.files(ROOT)
    rows: list[tuple[str, object]] = [
        ("modules", len(sizes)),
        ("lines of source", f"{lines:,}"),
        ("lines of a module, median and most", f"{median(sizes.values()):g}, {max(sizes.values())}"),
        ("modules that one sibling imports", len(only_importers())),
        ("import lines", f"{import_lines():,} ({100 * import_lines() / lines:.1f} %)"),
        ("words of docs", f"{words_of_docs():,}"),
        ("mutants", f"{mutants():,}"),
        ("private accesses from tests", f"{private_accesses():,}"),
    ]
    for area, texts in (
        ("docs", plain_english.pages(paths, ROOT)),
        ("src", plain_english.code(paths, ROOT, "src")),
        ("tests", plain_english.code(paths, ROOT, "tests")),
    ):
        found = plain_english.measure(texts)
        rows.append((f"habits in 1,000 words of {area}", f"{found.density:.1f}"))
        if area == "docs":
            rows.append(("sentences of docs over 30 words", f"{found.long_share:.1f} %"))
    rows.append(("everyday names in src", plain_english.everyday_names(paths, ROOT, "src").total()))
    if options.run:
        rows.append(("files entered until a commit", files_of_a_request()))
    for name, value in rows:
        print(f"{name:<40}{value}")


if __name__ == "__main__":
    main()
