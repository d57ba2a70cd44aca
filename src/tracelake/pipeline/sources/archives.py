"""Archive repositories, as MLflow 3.18 writes them and layout `trace` of Tracelake's own archive.

One trace is one uncompressed OTLP `TracesData` at `<root>/<experiment>/traces/<trace>/artifacts/traces.pb`; Tracelake
puts a directory for each upload before the last name. The experiment stands in the path alone, so it is read there.
"""

from __future__ import annotations

import re
from typing import Final

ARCHIVED: Final = "**/traces/*/artifacts/**/traces.pb"
"""The pattern of all traces below the root of a repository."""
_ARCHIVED: Final = re.compile(r"(?:.*/)?([^/]+)/traces/[^/]+/artifacts/(?:.*/)?traces\.pb", re.DOTALL)


def experiment_of(path: str) -> str | None:
    """Return the experiment of an archived trace, as its path names it; None for any other path or URL."""
    match = _ARCHIVED.fullmatch(path)
    return match[1] if match else None
