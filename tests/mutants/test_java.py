"""Mutants of the choice of a Java runtime: each breaks one rule, and shows that a named test fails."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests.doctor.test_machine import check_age_of_java
from tests.tasks.test_installed_java import check_installed
from tracelake.doctor import doctor
from tracelake.tasks import java


def test_installed_runtimes_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds no installed runtime is noticed."""
    with mock.patch.object(java, "_installed", return_value=[]), pytest.raises(AssertionError):
        check_installed(tmp_path, monkeypatch)


def test_untested_runtimes_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that takes a Java newer than the tested ones is noticed."""
    with mock.patch.object(java, "JAVA_TESTED", 99), pytest.raises(AssertionError):
        check_installed(tmp_path, monkeypatch)


def test_age_of_the_bundled_java_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A doctor that never compares the date is noticed."""
    with mock.patch.object(doctor, "_is_outdated", return_value=False), pytest.raises(AssertionError):
        check_age_of_java(monkeypatch)
