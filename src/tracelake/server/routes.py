"""What a key must be allowed for each route, and which routes answer keys of one workspace.

Pure. Whatever no line here names is for admins, and for keys of all workspaces, also what comes later.
"""

from __future__ import annotations

from typing import Final

from tracelake.access.model import Role
from tracelake.access.protocol import GRANTS, Need

_GET: Final = ("GET", "HEAD")
_WRITES: Final = ("POST", "PATCH", "DELETE")
_MLFLOW: Final = ("/api/2.0/mlflow/", "/api/3.0/mlflow/")
SIGN_IN: Final = "/sign-in"
SIGN_OUT: Final = "/sign-out"
BY_PROVIDER: Final = "/sign-in/provider"
SIGNED_IN: Final = "/sign-in/callback"
KEYS: Final = "/api/v1/keys"
SESSIONS: Final = "/api/v1/sessions"
AUDIT: Final = "/api/v1/audit"
OTLP: Final = "/v1/"

RULES: Final[tuple[tuple[tuple[str, ...], str, Need], ...]] = (
    (_GET, "/healthz", "public"),
    (_GET, "/version", "public"),
    (_GET, "/favicon.ico", "public"),
    (_GET, "/static/*", "public"),
    (("GET", "POST"), SIGN_IN, "public"),
    (("POST",), SIGN_OUT, "public"),
    (("GET",), BY_PROVIDER, "public"),
    (("GET",), SIGNED_IN, "public"),
    (("POST",), "/v1/traces", "ingest"),
    (("POST",), "/v1/metrics", "ingest"),
    (("POST",), "/v1/logs", "ingest"),
    (_GET, f"{KEYS}*", "admin"),
    (_GET, f"{SESSIONS}*", "admin"),
    (_GET, AUDIT, "admin"),
    (_GET, "/api/*", "read"),
    (_GET, "/", "read"),
    *(
        (_GET, f"/{page}*", "read")
        for page in ("traces/", "search", "versions", "diff", "datasets", "pipeline", "archive")
    ),
    *((_GET, f"/{page}", "read") for page in ("metrics", "readyz", "openapi.json")),
    *((("POST",), f"{prefix}traces/search", "read") for prefix in _MLFLOW),
    (("POST",), "/api/3.0/mlflow/traces", "ingest"),  # beside the spans of the same trace, by the same client
    *((("POST",), f"{prefix}traces/delete-traces", "admin") for prefix in _MLFLOW),
    *((_WRITES, f"{prefix}traces/*", "annotate") for prefix in _MLFLOW),
    *((("POST",), f"{prefix}experiments/search", "read") for prefix in _MLFLOW),
    *((("POST",), f"{prefix}experiments/create", "annotate") for prefix in _MLFLOW),
)
"""Methods, path, need; the first line that fits counts. A path that ends in `*` is the beginning of one."""

DIVIDED: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (_GET, "/"),
    (_GET, "/openapi.json"),
    (_GET, "/search"),
    (_GET, "/traces/*"),
    (("POST",), f"{OTLP}*"),
    (_GET, "/api/v1/traces*"),
    (_GET, "/api/v1/services"),
    (_GET, AUDIT),
    (_GET, "/api/v1/search*"),
    *(((*_GET, *_WRITES), f"{prefix}{what}/*") for prefix in _MLFLOW for what in ("traces", "experiments")),
)
"""Methods and path of what is divided by workspace: keys of one get what is of it. All else is of the whole lake."""


def needed(method: str, path: str) -> Need:
    """Return what a request asks for."""
    for methods, pattern, need in RULES:
        if method in methods and _fits(path, pattern):
            return need
    return "admin"


def is_divided(method: str, path: str) -> bool:
    """Whether a request is answered with what is of one workspace, where the key is of one."""
    if path.endswith("/delete-traces"):  # from the archive, too
        return False
    return any(method in methods and _fits(path, pattern) for methods, pattern in DIVIDED)


def may_open(path: str, role: Role, workspace: str | None) -> bool:
    """Whether a page is there for a key of this role and workspace; None: of all."""
    return needed("GET", path) in GRANTS[role] and (workspace is None or is_divided("GET", path))


def _fits(path: str, pattern: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern
