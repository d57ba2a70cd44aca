"""Lakes whose records are files, so that a test can truncate one."""

from __future__ import annotations

from pathlib import Path

import tracelake


def lake_of_files(folder: Path) -> tracelake.Lake:
    """Make a lake whose records are files in `folder/records`."""
    return tracelake.init(folder / "lake", metadata=(folder / "records").as_uri(), buckets=2)


def tear(folder: Path, word: str) -> None:
    """Truncate each record of such a lake that contains a word."""
    whole = {path: path.read_bytes() for path in (folder / "records").rglob("*") if path.is_file()}
    torn = {path: body for path, body in whole.items() if word.encode() in body}
    assert torn, word
    for path, body in torn.items():
        path.write_bytes(body[:-1])
