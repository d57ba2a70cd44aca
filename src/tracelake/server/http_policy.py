"""What each error is over HTTP: one table, for OTLP, the API and the pages.

The one door to the lake for all routes: of whoever asks, as much of the lake as their key is of.

Routes are made once, over a `LakeOfRequest`, and serve everybody. Whatever one of them asks of the lake goes to the
workspace of the request that it answers, which the guard says before any route is there. So none can forget it, and a
route that nobody has let in through the guard gets no lake at all.

What a key must be allowed for each route, and which routes answer keys of one workspace.

Pure. Whatever no line here names is for admins, and for keys of all workspaces, also what comes later.

Names of hosts and of sites, as headers and settings have them: what is the same is written in one way. Pure.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, cast

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
    (StorageError, 503),  # with Retry-After: nothing is wrong with the request, so the same one may do later
    (TracelakeError, 500),
)
"""Error → HTTP status: the first row whose class the error is of."""


def retry_after_s(error: TracelakeError) -> int | None:
    """Return after how many seconds the same may be asked for again; None where that is of no use."""
    if isinstance(error, QuotaError):
        return math.ceil(error.wait_s)
    return limits.INGEST_RETRY_AFTER_S if status_of(type(error)) == 503 else None


def status_of(kind: type[TracelakeError]) -> int:
    """Return the HTTP status of an error of a class."""
    return next(status for known, status in HTTP_STATUS if issubclass(kind, known))


_WORKSPACE: Final[ContextVar[str | None]] = ContextVar("tracelake_workspace")


@contextmanager
def request_workspace(workspace: str | None) -> Iterator[None]:
    """Let what is asked of the lake be of one workspace, with None of all, for as long as a request is answered."""
    token = _WORKSPACE.set(workspace)
    try:
        yield
    finally:
        _WORKSPACE.reset(token)


def requested_workspace() -> str | None:
    """Return the workspace of the request that is answered, None for all. Raises LookupError outside of one."""
    return _WORKSPACE.get()


class RequestLake:
    """The lake as the key of the request that is answered may see it."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    @classmethod
    def of(cls, lake: Lake) -> Lake:
        """Return it as routes have it."""
        return cast("Lake", cls(lake))

    def __getattr__(self, name: str) -> Any:
        """Return what a lake has under this name, or its workspace. Raises LookupError where nobody was let in."""
        workspace = requested_workspace()
        return getattr(self._lake if workspace is None else self._lake.within(workspace), name)


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


ANY: Final = "*"
_LABEL: Final = r"[^][:/?#@\\\s.]+"
_HOST: Final = re.compile(rf"(\[[0-9a-f:.]+(?:%[\w.-]+)?\]|{_LABEL}(?:\.{_LABEL})*)\.?(?::[0-9]*)?")
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#@\\\s]+)")
_USUAL_PORTS: Final = {"http": ":80", "https": ":443"}


def name_of(host: str) -> str:
    """Return the name in a header Host: without port and last dot, an IPv6 address as short as can be; empty: none."""
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
    """Return a name that a server is to answer to, as `name_of` has it. Raises UsageError where it is none."""
    name = name_of(f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host)
    if not name:
        raise UsageError(f"{host!r} is no name of a host; write such as traces.example, or {ANY} for any")
    return name


def allowed_origin(origin: str) -> str:
    """Return a site as browsers name it: without the usual port. Raises UsageError where it is none."""
    if origin == ANY:
        return origin
    match = _ORIGIN.fullmatch(origin.lower().removesuffix("/"))
    if match is None:
        raise UsageError(f"{origin!r} is no site; write such as https://shop.example, or {ANY} for any")
    return f"{match[1]}://{match[2].removesuffix(_USUAL_PORTS.get(match[1], ''))}"
