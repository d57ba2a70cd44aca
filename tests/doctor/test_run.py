"""The command `tracelake doctor` on healthy, absent and damaged lakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.cli.conftest import RunCli, cli
from tests.tracking.requests import request
from tracelake import limits
from tracelake.doctor.doctor import diagnose
from tracelake.tasks.runners import Progress
from tracelake.tracking import location

__all__ = ["cli"]
MACHINE = ["spark space", "versions", "machine", "java"]
ALL = [
    "lake",
    "objects",
    "records",
    "hot tier",
    "clock",
    "index",
    "quarantine",
    "lake space",
    "cache space",
    *MACHINE,
]


@pytest.fixture(autouse=True)
def _much_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the free space of this machine sufficient."""
    monkeypatch.setattr(limits, "FREE_SPACE_LOW_BYTES", 1)
    monkeypatch.setattr(limits, "FREE_SPACE_MIN_BYTES", 1)


def files(place: Path) -> dict[str, bytes]:
    """Return the files of a lake with their bytes, except those of SQLite."""
    return {
        str(file.relative_to(place)): file.read_bytes()
        for file in place.rglob("*")
        if file.is_file() and not file.name.startswith("metadata.db")
    }


def findings(out: str) -> dict[str, dict[str, Any]]:
    """Return the checks of a JSON document by their names."""
    return {found["check"]: found for found in json.loads(out)["checks"]}


def test_a_lake_that_is_well(cli: RunCli, tmp_path: Path) -> None:
    """On a healthy lake all checks are ok, the exit code is 0, and the lake is unchanged."""
    cli("init", "./lake")
    before = files(tmp_path / "lake")
    done = cli("doctor", "--no-spark", "--json")
    report = json.loads(done.out)
    assert (done.code, report["ok"], done.err) == (0, True, "")
    assert report["lake"] == (tmp_path / "lake").as_uri()
    assert [found["check"] for found in report["checks"]] == ALL
    for found in report["checks"]:
        assert (found["status"], found["mend"]) == ("ok", ""), found
        assert 0 <= found["seconds"] < limits.DOCTOR_CHECK_TIMEOUT_S
    assert files(tmp_path / "lake") == before
    with tracelake.open("./lake") as lake:
        assert lake.verify().ok


def test_a_hot_tier(cli: RunCli, tmp_path: Path) -> None:
    """Pending spans of the hot tier are reported; an absent database fails its check, and all others continue."""
    cli("init", "./lake")
    with tracelake.open("./lake") as lake:
        store = lake.hot.set_up()
        store.write([request((1, 1))])
        found = findings(cli("doctor", "--no-spark", "--json").out)["hot tier"]
        assert (found["status"], found["mend"]) == ("ok", "")
        assert "tracking.db: 1 rows of the outbox wait" in found["message"]
        store.close()
        location._open_stores.clear()
    for file in (tmp_path / "lake").glob("tracking.db*"):
        file.unlink()
    done = cli("doctor", "--no-spark", "--json")
    found_all = findings(done.out)
    assert (done.code, list(found_all)) == (1, ALL)
    assert found_all["hot tier"]["status"] == "failed"
    assert "not the tracking store of this lake" in found_all["hot tier"]["message"]


def test_the_table(cli: RunCli) -> None:
    """The text output has one check a row, with the remedy below each failure."""
    cli("init", "./lake")
    lines = cli("doctor", "--no-spark").out.splitlines()
    assert lines[0].split() == ["check", "status", "message", "time"]
    assert lines[2].startswith("lake ")
    done = cli("doctor", "--no-spark", "--lake", "./other")
    assert "→ Set TRACELAKE_LAKE" in done.out
    assert done.code == 1


def test_no_lake(cli: RunCli, tmp_path: Path) -> None:
    """An absent lake is a failed check; no lake is created, and the machine is still checked."""
    done = cli("doctor", "--no-spark", "--json", "--lake", "./nothing")
    found = findings(done.out)
    assert (done.code, done.err) == (1, "")
    assert list(found) == ["lake", *MACHINE]
    assert found["lake"]["status"] == "failed"
    assert "no lake in" in found["lake"]["message"]
    assert found["java"]["status"] == "ok"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("config", [b"{", b"", b'{"id":"x","created_at":"","buckets":8,"format_version":99}'])
def test_a_damaged_configuration(cli: RunCli, tmp_path: Path, config: bytes) -> None:
    """A torn, empty or foreign lake.json is a failed check, with a full disk as possible cause."""
    cli("init", "./lake")
    (tmp_path / "lake" / "lake.json").write_bytes(config)
    done = cli("doctor", "--no-spark", "--json")
    found = findings(done.out)
    assert (done.code, done.err) == (1, "")
    assert found["lake"]["status"] == "failed"
    assert "backup" in found["lake"]["mend"]
    assert list(found) == ["lake", "lake space", *MACHINE]
    assert found["versions"]["status"] == "ok"


def test_damaged_metadata(cli: RunCli, tmp_path: Path) -> None:
    """A metadata.db that is not a database is a failed check."""
    cli("init", "./lake")
    (tmp_path / "lake" / "metadata.db").write_bytes(b"no database" * 1000)
    done = cli("doctor", "--no-spark", "--json")
    assert (done.code, done.err) == (1, "")
    assert "metadata.db" in findings(done.out)["lake"]["message"]


def test_damaged_settings(cli: RunCli, tmp_path: Path) -> None:
    """An unreadable tracelake.toml is a failed check that names the file."""
    (tmp_path / "tracelake.toml").write_text("lake = ")
    done = cli("doctor", "--no-spark", "--json")
    assert (done.code, done.err) == (1, "")
    assert findings(done.out)["lake"]["mend"].startswith("Correct --lake, TRACELAKE_LAKE or tracelake.toml.")


def test_a_lake_that_cannot_be_written_to(
    cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a file blocks a directory, the checks of objects and clock fail, and that of records passes."""
    cli("init", "./lake")
    (tmp_path / "lake" / "doctor").write_text("in the way")
    found = findings(cli("doctor", "--no-spark", "--json").out)
    assert {name for name, check in found.items() if check["status"] == "failed"} == {"objects", "clock"}
    assert "the store runs" in found["objects"]["mend"]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "lake" / "lake.json"))
    found = findings(cli("doctor", "--no-spark", "--json").out)
    assert found["spark space"]["status"] == "failed"


def test_progress_is_told(tmp_path: Path) -> None:
    """Progress counts every check before it runs."""
    told: list[Progress] = []
    tracelake.init(tmp_path / "lake").close()
    diagnosis = diagnose(str(tmp_path / "lake"), spark=False, progress=told.append)
    assert diagnosis.ok
    assert [(step.done, step.total) for step in told] == [(n, len(ALL) - 1) for n in range(len(ALL) - 1)]
