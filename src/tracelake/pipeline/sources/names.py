"""Names of input files as text that any record, report and log can hold.

A path of Linux is bytes, most often UTF-8, and then it is its own name. Any other is named by its file URL
(RFC 8089), `file:///data/%E9.jsonl`: a path here is absolute, so no path begins like one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

_SCHEME: Final = "file://"


def to_name(path: str) -> str:
    """Return the name of an absolute path, as Python decodes paths."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return Path(path).as_uri()
    return path


def to_path(name: str) -> str:
    """Return the path that has this name."""
    return os.fsdecode(unquote_to_bytes(name.removeprefix(_SCHEME))) if name.startswith(_SCHEME) else name
