"""The documentation is current: links resolve, generated pages match, every column is described."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from scripts import reference
from scripts.floors import FLOORS
from tracelake import limits
from tracelake.otlp import conventions
from tracelake.otlp.schema import EVENT, LINK, OTLP_REST, SCOPE, SPANS_TABLE
from tracelake.tables.builtin import TRACES

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
INDEX = ROOT / "docs" / "README.md"
PAGES = [
    *(ROOT / "README.md", ROOT / "CHANGELOG.md", CONTRIBUTING),
    *(page for folder in ("docs", "benchmarks") for page in sorted((ROOT / folder).rglob("*.md"))),
]


def links(page: Path) -> Iterator[str]:
    """Yield the targets of a page's relative links and pictures, except in code blocks."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            yield target


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_relative_links_resolve() -> None:
    """Each relative link leads to a file of the repository, and its anchor to a heading."""
    broken = []
    for page in PAGES:
        for link in links(page):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_generated_pages_are_in_step() -> None:
    """`scripts/reference.py` would generate the same pages; run it after a change of their sources."""
    old = [
        name
        for name, make in reference.PAGES.items()
        if (reference.DOCS / name).read_text(encoding="utf-8") != make()
    ]
    assert old == []


def test_internals_name_every_room() -> None:
    """The first page of the internals lists each package that the tidy test knows, once."""
    text = reference.INTERNALS.read_text(encoding="utf-8")
    rooms = re.findall(r"^\| \d+ \| `(\w+)` \|", text, flags=re.MULTILINE)
    assert sorted(rooms) == sorted(room for floor in FLOORS for room in floor)


def test_every_page_is_in_the_index() -> None:
    """docs/README.md leads to every other page of the docs, once."""
    listed = sorted(INDEX.parent / link for link in links(INDEX) if not link.startswith(".."))
    assert listed == sorted(page for page in INDEX.parent.rglob("*.md") if page != INDEX)


def test_contributing_names_what_is_there() -> None:
    """Each file, folder, make target and module that CONTRIBUTING names exists."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w/])((?:src|tests|scripts|docs)/[\w/.*]+\w)", text)
    assert [path for path in paths if not list(ROOT.glob(path))] == []
    calls = re.findall(r"\bmake ((?:[a-z-]+ ?)+)", text)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))
    assert calls
    assert {word for call in calls for word in call.split()} - targets == set()
    modules = re.findall(r"-m ((?:tests|scripts)[\w.]*)", text)
    assert [name for name in modules if not (ROOT / f"{name.replace('.', '/')}.py").exists()] == []


@pytest.mark.parametrize(("heading", "schema"), [("spans", SPANS_TABLE), ("traces", TRACES)])
def test_every_column_is_described(heading: str, schema: pa.Schema) -> None:
    """tables.md has the columns of each table in their order, with type and null."""
    section = (
        (REFERENCE / "tables.md").read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    )
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", section.split("\n### ")[0], flags=re.MULTILINE)
    assert rows == [(field.name, described(field)) for field in schema]


def described(field: pa.Field[pa.DataType]) -> str:
    """Return a field's type as tables.md writes it."""
    kind = re.sub(r"<.*", "", str(field.type))
    text = {"map": "map&lt;string, string&gt;", "list": "list&lt;struct&gt;"}.get(kind, kind)
    return text if field.nullable else f"{text}, not null"


def test_every_source_name_and_inner_field_is_described() -> None:
    """tables.md has each attribute name that fills a column, in order, and each field of a struct."""
    text = (REFERENCE / "tables.md").read_text(encoding="utf-8")
    for column, names in (conventions.TEXT_COLUMNS | conventions.TOKEN_COLUMNS).items():
        row = re.search(rf"^\| `{column}` \| (`.*) \|$", text, flags=re.MULTILINE)
        assert row is not None, column
        assert [name for name in re.findall(r"`([^`]+)`", row[1]) if "." in name or name in names] == list(
            names
        )
    for struct in (EVENT, LINK, SCOPE, OTLP_REST):
        assert [field.name for field in struct if f"`{field.name}`" not in text] == []


def test_complete_pages_have_every_limit_and_command() -> None:
    """The pages that a release generates name each constant of `limits`, and the help of each command."""
    limits_page, cli_page = reference.complete_limits_page(), reference.complete_cli_page()
    names = [name for name in vars(limits) if name.isupper() and name != "MIB"]
    assert [name for name in names if f"| `{name}` |" not in limits_page] == []
    commands = re.findall(r"^\| `([a-z -]+)` \| \S", reference.cli_page(), flags=re.MULTILINE)
    assert len(commands) > 50
    assert [name for name in commands if f"Usage: tracelake {name} " not in cli_page] == []


def test_limits_page_has_the_limits_that_refuse() -> None:
    """limits.md has the limits that a client notices, and not those that only divide work."""
    page = reference.limits_page()
    assert "`OTLP_REQUEST_MAX_BYTES`" in page
    assert "`OTLP_BLOCK_BYTES`" not in page
