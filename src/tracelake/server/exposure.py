"""What a server shows to others than this machine: its address, its names, and TLS."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from tracelake import limits
from tracelake._errors import UsageError
from tracelake.access.openid import OpenId
from tracelake.lake.lake import Lake
from tracelake.server.guard import LOCAL_HOSTS, Allowed
from tracelake.server.locations import HttpLocations
from tracelake.server.names import allowed_host, allowed_origin
from tracelake.server.tls import Tls
from tracelake.storage.descriptors import raise_limit


@dataclass(frozen=True)
class Exposure:
    """What a server shows to others than this machine."""

    hosts: Sequence[str] = ()
    """Names that it answers to, besides those of this machine; `*` for any."""
    origins: Sequence[str] = ()
    """Sites whose pages may send traces, such as `https://shop.example`; `*` for any."""
    locations: Sequence[str] = ()
    """Directories, prefixes of buckets and brokers that requests may name; `*` for any. See `locations`."""
    tls: Tls | None = None
    openid: OpenId | None = None
    """How people sign in, where that is by a provider too."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, and raise the limit of open files for its connections. Raises UsageError."""
    raise_limit()
    address = "127.0.0.1" if host == "localhost" else host
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise UsageError(
            f"{host!r} is no address of this machine; --host takes numbers, such as 127.0.0.1 or 0.0.0.0, and "
            "--allowed-host the names that clients use"
        ) from None
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(limits.LISTEN_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise UsageError(f"cannot listen on {host}:{port}: {error}; choose another one with --port") from None
    return listener


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposed(lake: Lake, host: str, exposure: Exposure) -> None:
    """Raise UsageError if others reach it and there is no key, or a name, a location, TLS or sign-in cannot work."""
    for name in exposure.hosts:
        allowed_host(name)
    for site in exposure.origins:
        allowed_origin(site)
    HttpLocations(lake.url, exposure.locations)
    if exposure.tls is not None:
        exposure.tls.check()
    if exposure.openid is not None:
        exposure.openid.check()
        return
    if not is_loopback(host) and not any(key.standing == "active" for key in lake.keys.all()):
        raise UsageError(
            f"{host} can be reached from other machines, and the lake has no key that counts: make one with `tracelake "
            "key create NAME --role admin`, or use --host 127.0.0.1"
        )


def allowed_of(host: str, exposure: Exposure) -> Allowed:
    """Return what requests may name; of names those of this machine, the address, and the configured ones."""
    hosts = [*LOCAL_HOSTS, authority_of(host), *exposure.hosts]
    return Allowed(hosts, exposure.origins, exposure.locations)


def authority_of(host: str) -> str:
    """Return an address as URLs have it."""
    return f"[{host}]" if ":" in host else host
