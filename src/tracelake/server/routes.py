"""What a key must be allowed for each route. Pure; whatever no line here names is for admins, also what comes later."""

from __future__ import annotations

from typing import Final

from tracelake.access.protocol import Need

_GET: Final = ("GET", "HEAD")
_WRITES: Final = ("POST", "PATCH", "DELETE")
_MLFLOW: Final = ("/api/2.0/mlflow/", "/api/3.0/mlflow/")
SIGN_IN: Final = "/sign-in"
SIGN_OUT: Final = "/sign-out"
KEYS: Final = "/api/v1/keys"
OTLP: Final = "/v1/"

RULES: Final[tuple[tuple[tuple[str, ...], str, Need], ...]] = (
    (_GET, "/healthz", "public"),
    (_GET, "/version", "public"),
    (_GET, "/favicon.ico", "public"),
    (_GET, "/static/*", "public"),
    (("GET", "POST"), SIGN_IN, "public"),
    (("POST",), SIGN_OUT, "public"),
    (("POST",), "/v1/traces", "ingest"),
    (("POST",), "/v1/metrics", "ingest"),
    (("POST",), "/v1/logs", "ingest"),
    (_GET, f"{KEYS}*", "admin"),
    (_GET, "/api/*", "read"),
    (_GET, "/", "read"),
    *(
        (_GET, f"/{page}*", "read")
        for page in ("traces/", "search", "versions", "diff", "datasets", "archive")
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


def needed(method: str, path: str) -> Need:
    """Return what a request asks for."""
    for methods, pattern, need in RULES:
        fits = path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern
        if fits and method in methods:
            return need
    return "admin"
