"""Reading commands work on a lake that cannot be written, on a read-only mount or a full disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.archive.place import HotLake
from tests.tracking.requests import trace_id

PROGRAM = Path(sys.executable).with_name("tracelake")
COMMANDS = {
    "tables": "spans",
    "log": "commit",
    "sql 'select count(*) as n from spans'": "3",
    "search hello": "hello",
    f"trace show {trace_id(1)}": "hello",
    "dataset export questions --output /dev/shm/{name}.jsonl": "examples",
    "verify": "The lake is intact.",
}
READ_ONLY = (
    'mount --bind "$LAKE" "$LAKE" && mount -o remount,bind,ro "$LAKE" && ! touch "$LAKE/x" 2>/dev/null'
)
FULL = (
    'mount -t tmpfs -o size=8m none "$PLACE" && cp -a "$SOURCE/." "$PLACE" && '
    '{ head -c 9000000 /dev/zero > "$PLACE/filler" 2>/dev/null; ! head -c 5000 /dev/zero > "$PLACE/y" 2>/dev/null; }'
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a lake with a hot tier and a dataset, and close it."""
    folder = tmp_path_factory.mktemp("read-only")
    hot = HotLake(folder / "lake")
    hot.write((1, 1), (1, 2), (2, 1), text="hello")
    questions = hot.lake.datasets.create("questions", message="questions")
    questions.add(where="true", limit=1, message="one")
    hot.lake.close()
    return folder / "lake"


def with_log(lake: Path, folder: Path) -> Path:
    """Return a copy of the lake as a killed writer leaves it: its last commits exist only in SQLite's log."""
    copy = folder / "killed"
    databases = [lake / "metadata.db", lake / "tracking.db"]
    with closing(sqlite3.connect(databases[0])) as one, closing(sqlite3.connect(databases[1])) as two:
        for db in (one, two):
            (version,) = db.execute("PRAGMA user_version").fetchone()
            db.execute(f"PRAGMA user_version = {version}")  # changes nothing, but writes a frame of the log
        shutil.copytree(lake, copy)
    for database in databases:
        (copy / f"{database.name}-shm").unlink()
        assert (copy / f"{database.name}-wal").stat().st_size > 0
    return copy


def run(
    command: str, prepare: str, lake: Path, place: Path, tmp_path: Path
) -> subprocess.CompletedProcess[str]:
    """Run a command of the CLI in a private mount namespace."""
    environment = {
        **os.environ,
        "LAKE": str(lake),
        "SOURCE": str(lake),
        "PLACE": str(place),
        "TRACELAKE_LAKE": str(place),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    return subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", f"{prepare}\n{PROGRAM} {command}"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_read_only_mount(lake: Path, tmp_path: Path, command: str, state: str) -> None:
    """Each reading command works, also after a writer was killed, and leaves no copy."""
    place = lake if state == "closed" else with_log(lake, tmp_path)
    (temporary := tmp_path / "temporary").mkdir()
    own = f"{READ_ONLY}\nexport TMPDIR={temporary}"
    done = run(command.format(name=tmp_path.name), own, place, place, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert COMMANDS[command] in done.stdout
    assert list(temporary.glob("tracelake-read-only-*")) == []


@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk(lake: Path, tmp_path: Path, command: str, state: str) -> None:
    """Each reading command works on a disk without a free byte."""
    source = lake if state == "closed" else with_log(lake, tmp_path)
    place = tmp_path / "full"
    place.mkdir()
    done = run(command.format(name=tmp_path.name), FULL, source, place, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert COMMANDS[command] in done.stdout


@pytest.mark.parametrize("prepare", [READ_ONLY, FULL])
def test_the_log_is_read(lake: Path, tmp_path: Path, prepare: str) -> None:
    """A commit that exists only in SQLite's log is read, though the log cannot be merged into the database."""
    with tracelake.open(lake) as opened:
        opened.tag(f"t-{prepare is FULL}")
        source = Path(shutil.copytree(lake, tmp_path / "killed"))
    (source / "metadata.db-shm").unlink()
    place = source if prepare is READ_ONLY else tmp_path / "full"
    place.mkdir(exist_ok=True)
    done = run("tag list", prepare, source, place, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"t-{prepare is FULL}" in done.stdout


def test_a_write_says_why_it_fails(lake: Path, tmp_path: Path) -> None:
    """A command that writes ends with an error that names the cause, and changes nothing."""
    done = run("tag create v1", READ_ONLY, lake, lake, tmp_path)
    assert done.returncode != 0
    assert "read-only" in done.stderr
    assert "Traceback" not in done.stderr
