"""HTTP policy of the server: status codes of errors, access rules of routes, workspace isolation, and names of hosts.

A route takes the lake as a `RequestLake`: all of it, or the view of the workspace that the guard set before any route
runs. No route can therefore bypass the isolation, and a request that the guard has not admitted gets no lake. A route
that no rule names needs an admin key for all workspaces; that includes routes added later. The rules and names are pure
data and functions.

`HttpLocations` checks the locations that requests name, for sources and for the archive repository: setting
`http_locations` lists allowed directories, bucket prefixes and brokers. Commands and programs on the server's machine
may name any location.
"""

from __future__ import annotations

import fnmatch
import glob
import ipaddress
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias, cast
from urllib.parse import unquote

from fastapi import Depends, Request

from tracelake import _errors, limits
from tracelake.access.keys import GRANTS, Need, Role
from tracelake.archive.service import FOLDER
from tracelake.lake.lake import Lake
from tracelake.limits import QUOTED_MAX_CHARS
from tracelake.pipeline.kafka_client import SCHEME as KAFKA
from tracelake.pipeline.kafka_client import address_of
from tracelake.pipeline.sources.files import ARCHIVED
from tracelake.pipeline.sources.registry import source_of
from tracelake.storage.urls import FOREIGN_SCHEMES

HTTP_STATUS: Final[tuple[tuple[type[_errors.TracelakeError], int], ...]] = (
    (_errors.NotFoundError, 404),
    (_errors.ConflictError, 409),
    (_errors.NothingToCommitError, 409),
    (_errors.UsageError, 400),
    (_errors.UnsupportedError, 415),
    (_errors.InputError, 400),
    (_errors.NoKeyError, 401),
    (_errors.QuotaError, 429),
    (_errors.AccessError, 403),
    (_errors.ProviderError, 502),
    (_errors.LimitError, 413),
    (_errors.StorageError, 503),  # with Retry-After: the request is valid, so a retry may succeed
    (_errors.TracelakeError, 500),
)
"""HTTP status of each error class; the first matching row counts."""


def retry_after_s(error: _errors.TracelakeError) -> int | None:
    """Return the seconds after which a retry makes sense, or None if it never does."""
    if isinstance(error, _errors.QuotaError):
        return math.ceil(error.wait_s)
    return limits.INGEST_RETRY_AFTER_S if status_of(type(error)) == 503 else None


def status_of(kind: type[_errors.TracelakeError]) -> int:
    """Return the HTTP status of an error class."""
    return next(status for base, status in HTTP_STATUS if issubclass(kind, base))


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
    (_GET, "/api/v1/erasures*", "admin"),
    (_GET, "/api/*", "read"),
    (("POST", "DELETE"), "/api/v1/traces/*", "annotate"),
    (("POST",), "/traces/*", "annotate"),
    (_WRITES, "/api/v1/datasets*", "annotate"),
    (("POST",), "/datasets*", "annotate"),
    (("GET", "HEAD", "POST"), "/add-to-dataset", "annotate"),
    (_GET, "/", "read"),
    *(
        (_GET, f"/{page}*", "read")
        for page in (
            "traces/",
            "overview",
            "search",
            "versions",
            "diff",
            "datasets",
            "pipeline",
            "archive",
            "retention",
        )
    ),
    *((_GET, f"/{page}", "read") for page in ("traces", "sessions", "session", "users", "user", "compare")),
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
    (_GET, "/overview"),
    (_GET, "/traces"),
    (_GET, "/search"),
    (_GET, "/sessions"),
    (_GET, "/session"),
    (_GET, "/users"),
    (_GET, "/user"),
    (_GET, "/compare"),
    (_GET, "/traces/*"),
    (("POST",), f"{OTLP}*"),
    (_GET, "/api/v1/traces*"),
    (("POST", "DELETE"), "/api/v1/traces/*"),
    (("POST",), "/traces/*"),
    (_GET, "/api/v1/overview"),
    (_GET, "/api/v1/services"),
    (_GET, "/api/v1/assessments"),
    (_GET, "/api/v1/experiments"),
    (_GET, "/api/v1/trace-sessions"),
    (_GET, "/api/v1/users"),
    (_GET, "/api/v1/conversation"),
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


def may_send(method: str, path: str, role: Role, workspace: str | None) -> bool:
    """Return whether a key of this role and workspace may send a request; None means all workspaces."""
    return needed(method, path) in GRANTS[role] and (workspace is None or is_divided(method, path))


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
        raise _errors.UsageError(
            f"{host!r} is not a host name; write one such as traces.example, or {ANY} for any"
        )
    return name


def allowed_origin(origin: str) -> str:
    """Return a site as browsers write it, without the default port. Raises UsageError for an invalid site."""
    if origin == ANY:
        return origin
    match = _ORIGIN.fullmatch(origin.lower().removesuffix("/"))
    if match is None:
        raise _errors.UsageError(
            f"{origin!r} is not a site; write one such as https://shop.example, or {ANY} for any"
        )
    return f"{match[1]}://{match[2].removesuffix(_USUAL_PORTS.get(match[1], ''))}"


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FILE: Final = "file"


@dataclass(frozen=True, slots=True)
class _Place:
    """Parsed location: fixed path components, with links resolved, and components from the first wildcard on."""

    scheme: str
    fixed: tuple[str, ...]
    pattern: tuple[str, ...] = ()

    def is_below(self, root: _Place) -> bool:
        return self.scheme == root.scheme and self.fixed[: len(root.fixed)] == root.fixed

    def may_reach(self, root: _Place) -> bool:
        """Return whether the pattern may match a path below a directory."""
        if not root.is_below(_Place(self.scheme, self.fixed)):
            return False
        names = root.fixed[len(self.fixed) :]
        for name, part in zip(names, self.pattern, strict=False):
            if part == "**":
                return True
            if not fnmatch.fnmatchcase(name, part):
                return False
        return len(self.pattern) > len(names)


class HttpLocations:
    """Locations that HTTP requests may name."""

    def __init__(self, lake_url: str, roots: Sequence[str] = ()) -> None:
        """Allow locations below these roots. Raises UsageError for an invalid root."""
        (self._lake,) = _places(lake_url)[-1:]
        self._roots = tuple(roots)
        self._places: list[_Place] = []
        self._brokers: list[tuple[frozenset[str], str | None]] = []
        for root in roots:
            if root.startswith(f"{KAFKA}://"):
                servers, _, topic = root.removeprefix(f"{KAFKA}://").partition("/")
                self._brokers.append((frozenset(servers.split(",")), topic or None))
            elif root != ANY:
                self._places += _places(root)

    def check_source(self, address: str) -> None:
        """Raise ForbiddenError if requests may not add this source, UsageError if it is invalid."""
        source_of(address)
        if address.startswith(f"{KAFKA}://"):
            topic = address_of(address)
            allowed = {
                broker for brokers, only in self._brokers for broker in brokers if only in (None, topic.topic)
            }
            if ANY not in self._roots and not allowed.issuperset(topic.servers.split(",")):
                raise self._refused(address)
            return
        for place in _places(address, has_patterns=True):
            self._check_root(address, place)
            below = place if place.pattern else _Place(place.scheme, place.fixed, tuple(ARCHIVED.split("/")))
            if place.is_below(self._lake) or below.may_reach(self._lake):
                raise _own(address)

    def check_repository(self, location: str) -> None:
        """Raise ForbiddenError if requests may not move the archive there, UsageError if the location is invalid."""
        archive = _Place(self._lake.scheme, (*self._lake.fixed, FOLDER))
        for place in _places(location):
            if place.is_below(archive):
                continue
            if place.is_below(self._lake) or self._lake.is_below(place):
                raise _own(location)
            self._check_root(location, place)

    def _check_root(self, address: str, place: _Place) -> None:
        if ANY not in self._roots and not any(place.is_below(root) for root in self._places):
            raise self._refused(address)

    def _refused(self, address: str) -> _errors.ForbiddenError:
        allowed = ", ".join(self._roots) or "none"
        return _errors.ForbiddenError(
            f"requests over HTTP may not name {address[:QUOTED_MAX_CHARS]!r}; allowed locations: {allowed}. Add its "
            "directory, bucket or broker to TRACELAKE_HTTP_LOCATIONS and start the server again, or use the command "
            "line on the machine of the server."
        )


def _own(address: str) -> _errors.ForbiddenError:
    return _errors.ForbiddenError(
        f"{address[:QUOTED_MAX_CHARS]!r} is inside the lake's directory, which requests may not name; choose "
        "another location."
    )


def _places(address: str, *, has_patterns: bool = False) -> list[_Place]:
    """Return the parsed locations of an address; several if readers may decode its URL differently.

    Raises UsageError for an invalid address, or for `..` where links cannot be resolved.
    """
    match = _SCHEME.match(address)
    scheme = match[1] if match else _FILE
    remaining = address[match.end() :] if match else address
    if scheme not in (_FILE, *FOREIGN_SCHEMES):
        raise _errors.UsageError(f"{address[:QUOTED_MAX_CHARS]!r} is not a location: {scheme}:// is unknown.")
    if scheme != _FILE:
        names = remaining.rstrip("/").split("/")
        return [_split(address, scheme, names, has_patterns=has_patterns)]
    readings = (
        [remaining]
        if match is None
        else [remaining, unquote(remaining), unquote(remaining.removeprefix("localhost"))]
    )
    try:
        return [
            _split(address, scheme, _absolute(each), has_patterns=has_patterns)
            for each in dict.fromkeys(readings)
        ]
    except ValueError as error:
        raise _errors.UsageError(f"{address[:QUOTED_MAX_CHARS]!r} is not a path: {error}") from error


def _absolute(path: str) -> list[str]:
    """Return the components of an absolute path without resolving `..`. Links must be resolved before `..` is
    removed."""
    return [name for name in os.path.join(os.getcwd(), path).split("/") if name not in ("", ".")]  # noqa: PTH109, PTH118


def _split(address: str, scheme: str, names: Sequence[str], *, has_patterns: bool) -> _Place:
    at = next((i for i, name in enumerate(names) if has_patterns and glob.has_magic(name)), len(names))
    fixed, pattern = tuple(names[:at]), tuple(names[at:])
    if ".." in pattern or (scheme != _FILE and {"..", ".", ""} & set(names)):
        raise _errors.UsageError(
            f"{address[:QUOTED_MAX_CHARS]!r} contains `.`, `..` or an empty name; write the location "
            "without it."
        )
    if scheme == _FILE:
        fixed = tuple(name for name in os.path.realpath("/" + "/".join(fixed)).split("/") if name)
    return _Place(scheme, fixed, pattern)
