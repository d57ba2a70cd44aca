"""HTTP policy of the server: status codes of errors, access rules of routes, workspace isolation, and names of hosts.

A route takes the lake as a `RequestLake`: all of it, or the view of the workspace that the guard set before any route
runs. So no route can bypass isolation, and a route without an admitted request gets no lake. A route that no rule
names, including future ones, needs an admin key for all workspaces. The rules and names are pure data and functions.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Final, TypeAlias, cast

from fastapi import Depends, Request

from tracelake import limits
from tracelake._errors import (
    AccessError,
    ConflictError,
    InputError,
    LimitError,
    NoKeyError,
    NotFoundError,
    NothingToCommitError,
    ProviderError,
    QuotaError,
    StorageError,
    TracelakeError,
    UnsupportedError,
    UsageError,
)
from tracelake.access.keys import GRANTS, Need, Role
from tracelake.lake.lake import Lake

HTTP_STATUS: Final[tuple[tuple[type[TracelakeError], int], ...]] = (
    (NotFoundError, 404),
    (ConflictError, 409),
    (NothingToCommitError, 409),
    (UsageError, 400),
    (UnsupportedError, 415),
    (InputError, 400),
    (NoKeyError, 401),
    (QuotaError, 429),
    (AccessError, 403),
    (ProviderError, 502),
    (LimitError, 413),
    (StorageError, 503),  # with Retry-After: the request is valid, so a retry may succeed
    (TracelakeError, 500),
)
"""HTTP status of each error class; the first matching row counts."""


def retry_after_s(error: TracelakeError) -> int | None:
    """Return the seconds after which a retry makes sense, or None if it never does."""
    if isinstance(error, QuotaError):
        return math.ceil(error.wait_s)
    return limits.INGEST_RETRY_AFTER_S if status_of(type(error)) == 503 else None


def status_of(kind: type[TracelakeError]) -> int:
    """Return the HTTP status of an error class."""
    return next(status for known, status in HTTP_STATUS if issubclass(kind, known))


_WORKSPACE: Final[ContextVar[str | None]] = ContextVar("tracelake_workspace")


@contextmanager
def request_workspace(workspace: str | None) -> Iterator[None]:
    """Set the workspace of the current request; None means all."""
    token = _WORKSPACE.set(workspace)
    try:
        yield
    finally:
        _WORKSPACE.reset(token)


def requested_workspace() -> str | None:
    """Return the current request's workspace; None means all. Raises LookupError outside of a request."""
    return _WORKSPACE.get()


async def request_lake(request: Request) -> Lake:
    """Return the lake as the request's key may see it: all of it, or the view of one workspace.

    Raises LookupError if the request was not admitted.
    """
    lake: Lake = request.app.state.lake
    workspace = requested_workspace()
    return lake if workspace is None else cast("Lake", lake.within(workspace))


RequestLake: TypeAlias = Annotated[Lake, Depends(request_lake)]
"""Parameter type of routes that use the lake."""


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
    (("POST",), "/api/3.0/mlflow/traces", "ingest"),  # sent by the same client as the trace's spans
    *((("POST",), f"{prefix}traces/delete-traces", "admin") for prefix in _MLFLOW),
    *((_WRITES, f"{prefix}traces/*", "annotate") for prefix in _MLFLOW),
    *((("POST",), f"{prefix}experiments/search", "read") for prefix in _MLFLOW),
    *((("POST",), f"{prefix}experiments/create", "annotate") for prefix in _MLFLOW),
)
"""Access rules: methods, path, need. The first matching rule counts. A trailing `*` matches any suffix."""

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
"""Routes whose responses are limited to the key's workspace. All others cover the whole lake."""


def needed(method: str, path: str) -> Need:
    """Return the permission that a request needs."""
    for methods, pattern, need in RULES:
        if method in methods and _fits(path, pattern):
            return need
    return "admin"


def is_divided(method: str, path: str) -> bool:
    """Return whether a route's responses are limited to the key's workspace."""
    if path.endswith("/delete-traces"):  # deletes from the archive too
        return False
    return any(method in methods and _fits(path, pattern) for methods, pattern in DIVIDED)


def may_open(path: str, role: Role, workspace: str | None) -> bool:
    """Return whether a key of this role and workspace may open a page; None means all workspaces."""
    return needed("GET", path) in GRANTS[role] and (workspace is None or is_divided("GET", path))


def _fits(path: str, pattern: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


ANY: Final = "*"
_LABEL: Final = r"[^][:/?#@\\\s.]+"
_HOST: Final = re.compile(rf"(\[[0-9a-f:.]+(?:%[\w.-]+)?\]|{_LABEL}(?:\.{_LABEL})*)\.?(?::[0-9]*)?")
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#@\\\s]+)")
_USUAL_PORTS: Final = {"http": ":80", "https": ":443"}


def name_of(host: str) -> str:
    """Return the normalized name of a Host header, or an empty text if invalid. Ports and trailing dots are removed,
    and IPv6 addresses shortened."""
    match = _HOST.fullmatch(host.lower())
    if match is None:
        return ""
    name = match[1]
    if not name.startswith("["):
        return name
    try:
        return f"[{ipaddress.IPv6Address(name[1:-1])}]"
    except ValueError:
        return ""


def allowed_host(host: str) -> str:
    """Return a configured host name in the form of `name_of`. Raises UsageError for an invalid name."""
    name = name_of(f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host)
    if not name:
        raise UsageError(f"{host!r} is no name of a host; write such as traces.example, or {ANY} for any")
    return name


def allowed_origin(origin: str) -> str:
    """Return a site as browsers write it, without the default port. Raises UsageError for an invalid site."""
    if origin == ANY:
        return origin
    match = _ORIGIN.fullmatch(origin.lower().removesuffix("/"))
    if match is None:
        raise UsageError(f"{origin!r} is no site; write such as https://shop.example, or {ANY} for any")
    return f"{match[1]}://{match[2].removesuffix(_USUAL_PORTS.get(match[1], ''))}"
