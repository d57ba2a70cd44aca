"""Names of hosts and of sites, as headers and settings have them: what is the same is written in one way. Pure."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from tracelake._errors import UsageError

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
