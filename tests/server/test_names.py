"""Equal and invalid host names and sites in headers and settings, in every spelling."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tracelake
from tests.broken import Broken, assert_caught
from tests.server.fake_lake import FakeLake
from tracelake.server import http_policy
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


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Broken("case is none", name_of, "host.lower()", "host"), check_hosts),
        (Broken("all of it is a name", name_of, "fullmatch", "match"), check_hosts),
        (Broken("an address has one spelling", name_of, "ipaddress.IPv6Address(name[1:-1])", "name[1:-1]"),
         check_hosts),
        (Broken("brackets are meant", allowed_host, "host.count(\":\") > 1", "False"), check_settings),
        (Broken("the usual port is none", allowed_origin, "_USUAL_PORTS.get(match[1], '')", "''"), check_settings),
        (Broken("all of it is a site", allowed_origin, "fullmatch", "match"), check_settings),
        (Broken("names are checked", check_exposed, "allowed_host(name)", "pass"), check_settings),
        (Broken("sites are checked", check_exposed, "allowed_origin(site)", "pass"), check_settings),
    ],
    ids=lambda each: getattr(each, "rule", ""),
)  # fmt: skip
def test_broken_rules_are_caught(broken: Broken, check: Callable[[], None]) -> None:
    """The checks fail if any rule is removed."""
    assert http_policy.ANY == "*"
    assert_caught(broken, check)
