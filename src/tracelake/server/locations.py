"""Locations that HTTP requests may name, for sources and for the archive repository.

Setting `http_locations` lists allowed directories, bucket prefixes and brokers. Commands and programs on the server's
machine may name any location.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from tracelake._errors import ForbiddenError, UsageError
from tracelake.archive.service import FOLDER
from tracelake.limits import QUOTED_MAX_CHARS
from tracelake.pipeline.kafka_client import SCHEME as KAFKA
from tracelake.pipeline.kafka_client import address_of
from tracelake.pipeline.sources.files import ARCHIVED
from tracelake.pipeline.sources.registry import source_of
from tracelake.storage.input_buckets import FOREIGN_SCHEMES

ANY: Final = "*"
"""Setting that allows every location outside of the lake."""
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

    def _refused(self, address: str) -> ForbiddenError:
        allowed = ", ".join(self._roots) or "none"
        return ForbiddenError(
            f"requests over HTTP may not name {address[:QUOTED_MAX_CHARS]!r}; allowed locations: {allowed}. Add its "
            "directory, bucket or broker to TRACELAKE_HTTP_LOCATIONS and start the server again, or use the command "
            "line on the machine of the server."
        )


def _own(address: str) -> ForbiddenError:
    return ForbiddenError(
        f"{address[:QUOTED_MAX_CHARS]!r} reaches into the lake's own directory, which no request may name; choose "
        "another location."
    )


def _places(address: str, *, has_patterns: bool = False) -> list[_Place]:
    """Return the parsed locations of an address; several if readers may decode its URL differently.

    Raises UsageError for an invalid address, or for `..` where links cannot be resolved.
    """
    match = _SCHEME.match(address)
    scheme = match[1] if match else _FILE
    rest = address[match.end() :] if match else address
    if scheme not in (_FILE, *FOREIGN_SCHEMES):
        raise UsageError(f"{address[:QUOTED_MAX_CHARS]!r} names no location: {scheme}:// is not known.")
    if scheme != _FILE:
        names = rest.rstrip("/").split("/")
        return [_split(address, scheme, names, has_patterns=has_patterns)]
    readings = [rest] if match is None else [rest, unquote(rest), unquote(rest.removeprefix("localhost"))]
    try:
        return [
            _split(address, scheme, _absolute(each), has_patterns=has_patterns)
            for each in dict.fromkeys(readings)
        ]
    except ValueError as error:
        raise UsageError(f"{address[:QUOTED_MAX_CHARS]!r} is no path: {error}") from error


def _absolute(path: str) -> list[str]:
    """Return the components of an absolute path without resolving `..`. Links must be resolved before `..` is
    removed."""
    return [name for name in os.path.join(os.getcwd(), path).split("/") if name not in ("", ".")]  # noqa: PTH109, PTH118


def _split(address: str, scheme: str, names: Sequence[str], *, has_patterns: bool) -> _Place:
    at = next((i for i, name in enumerate(names) if has_patterns and glob.has_magic(name)), len(names))
    fixed, pattern = tuple(names[:at]), tuple(names[at:])
    if ".." in pattern or (scheme != _FILE and {"..", ".", ""} & set(names)):
        raise UsageError(
            f"{address[:QUOTED_MAX_CHARS]!r} holds `.`, `..` or an empty name; write the location without it."
        )
    if scheme == _FILE:
        fixed = tuple(name for name in os.path.realpath("/" + "/".join(fixed)).split("/") if name)
    return _Place(scheme, fixed, pattern)
