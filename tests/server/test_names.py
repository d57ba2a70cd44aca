"""Equal and invalid host names and sites in headers and settings, in every spelling."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tracelake
from tests.server.fake_lake import FakeLake
from tracelake.server.http_policy import allowed_host, allowed_origin, name_of
from tracelake.server.run import Exposure, check_exposed


def check_hosts() -> None:
    """Check that case, port, final dot and spelling of an address do not matter, and an invalid Host is refused."""
    for host, name in (
        ("Traces.Example:4318", "traces.example"),
        ("traces.example.", "traces.example"),
        ("traces.example.:443", "traces.example"),
        ("127.0.0.1:", "127.0.0.1"),
        ("[2001:DB8:0::1]:4318", "[2001:db8::1]"),
        ("[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
        *(
            (none, "")
            for none in ("", ".", "a:b", "a:80:80", "[::1", "[::1]evil", "[zz]", "::1", "a@b", "a:1@b", "a/b")
        ),
        *((none, "") for none in ("a b", "a?b", "a#b", "a..", "[::1]..", "a\\b", "a\n", "[1.2.3.4]")),
    ):
        assert name_of(host) == name, host


def check_settings() -> None:
    """Check that settings accept a name with a port and an address without brackets, and refuse invalid names."""
    hosts = ("Traces.Example:4318", "2001:db8::0001", "[::1]", "fe80::1%eth0", "*")
    told = ["traces.example", "[2001:db8::1]", "[::1]", "[fe80::1%eth0]", "*"]
    assert [allowed_host(host) for host in hosts] == told
    sites = ("https://Shop.Example:443/", "http://shop.example:8080", "http://[::1]:80", "app://x", "*")
    told = ["https://shop.example", "http://shop.example:8080", "http://[::1]", "app://x", "*"]
    assert [allowed_origin(site) for site in sites] == told
    lake = FakeLake([])
    for host in ("https://traces.example", "", "a b", "traces.example/path"):
        with pytest.raises(tracelake.UsageError, match="not a host name"):
            check_exposed(lake, "127.0.0.1", Exposure(hosts=[host]))
    for site in ("shop.example", "https://shop.example/path", "https://", "null", ""):
        with pytest.raises(tracelake.UsageError, match="is not a site"):
            check_exposed(lake, "127.0.0.1", Exposure(origins=[site]))


@pytest.mark.parametrize("check", [check_hosts, check_settings])
def test_rules(check: Callable[[], None]) -> None:
    """Each rule of names holds."""
    check()
