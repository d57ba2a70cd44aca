"""Programs for Node.js that tests need, installed once according to their lock file."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path


def install(directory: Path) -> str:
    """Install the packages of `directory`/package-lock.json there if they are missing; return the path of node."""
    node, npm = shutil.which("node"), shutil.which("npm")
    assert node and npm, "node and npm are missing: install Node.js 20 or newer"  # noqa: PT018 one cause
    # npm writes this file last, so an interrupted install, or one of an older lock, is repeated.
    done = directory / "node_modules" / ".package-lock.json"
    with (directory / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not done.exists() or done.stat().st_mtime < (directory / "package-lock.json").stat().st_mtime:
            subprocess.run(
                [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=directory, check=True
            )
    return node
