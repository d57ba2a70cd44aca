"""Durations, the precedence of retentions, due traces, and the end of archiveNow (A7, A8)."""

from __future__ import annotations

import itertools

import pytest

from tracelake._errors import UsageError
from tracelake._settings import duration_ns
from tracelake.archive.retention import (
    ArchiveNow,
    ArchiveOutcome,
    ResolvedRetention,
    cutoff_ns,
    is_archive_now_complete,
    parse_archive_now_tag,
    parse_retention_tag,
    resolve,
)

DAY_NS = 86_400 * 10**9
SET = (None, "1d", "7d", "30d")


DEFAULT = (None, "10m")


def expected(server: str | None, workspace: str | None, experiment: str | None, allowed: bool) -> str | None:
    """Compute the expected retention differently: on the allowlist the narrowest one that is set, else the shortest
    of all."""
    texts = [text for text in (experiment, workspace, server) if text is not None]
    return (texts[0] if allowed else min(texts, key=duration_ns)) if texts else None


def every_retention() -> None:
    """Check each combination."""
    for server, workspace, experiment, allowed, default in itertools.product(
        SET, SET, SET, (False, True), DEFAULT
    ):
        resolved = resolve(server, workspace, experiment, allowed=allowed, default=default)
        if server is workspace is experiment is None:
            assert resolved == ResolvedRetention(default, default and "default")
            continue
        assert resolved.text == expected(server, workspace, experiment, allowed)
        by_source = {"server": server, "workspace": workspace, "experiment": experiment}
        assert resolved.text == by_source[resolved.source or ""]


def test_a8_every_retention_of_server_workspace_experiment_and_allowlist() -> None:
    """A shorter retention always counts, a longer one only on the allowlist; the test breaks each half of the rule
    (A8)."""
    every_retention()


@pytest.mark.parametrize(
    ("text", "seconds"), [("1m", 60), ("12h", 43_200), ("30d", 2_592_000), ("9999999d", 9999999 * 86400)]
)
def test_durations(text: str, seconds: int) -> None:
    """A duration is a number and its unit, up to the largest clock value."""
    assert duration_ns(text) == seconds * 10**9


@pytest.mark.parametrize(
    "text", ["", "0d", "01d", "1", "d", "1s", "1.5h", "-1d", "1d ", " 1d", "10000000d", "1D", "\u0661d"]
)
def test_what_is_no_duration(text: str) -> None:
    """An invalid duration is refused with a valid example."""
    with pytest.raises(UsageError, match="such as 30d"):
        duration_ns(text)


@pytest.mark.parametrize(
    "tag",
    [
        *("", "[]", "null", "{", '{"type":"duration"}', '{"type":"date","value":"1d"}'),
        *('{"type":"duration","value":1}', '{"type":"duration","value":"1d","more":1}', "[" * 100_000),
    ],
)
def test_tags_of_retention_that_say_nothing(tag: str) -> None:
    """An invalid retention tag is refused by name, for any content."""
    with pytest.raises(UsageError, match=r"archivalRetention|such as"):
        parse_retention_tag(tag)


def test_tags() -> None:
    """archiveNow is read with and without an age; a missing tag has no effect (A7)."""
    assert parse_retention_tag('{"type":"duration","value":"30d"}') == "30d"
    assert parse_retention_tag(None) is None
    assert parse_archive_now_tag("{}") == ArchiveNow()
    assert parse_archive_now_tag('{"older_than":"1d"}') == ArchiveNow(DAY_NS)
    assert parse_archive_now_tag(None) is None
    for tag in ("1", '{"older_than":1}', '{"older":"1d"}', '{"older_than":"1d","x":1}', '{"older_than":"x"}'):
        with pytest.raises(UsageError):
            parse_archive_now_tag(tag)


def test_what_is_due() -> None:
    """The later of both cutoffs counts: archiveNow archives more than the retention, never less."""
    now = 100 * DAY_NS
    assert cutoff_ns(None, None, now) is None
    assert cutoff_ns("30d", None, now) == 70 * DAY_NS
    assert cutoff_ns(None, ArchiveNow(), now) == now
    assert cutoff_ns("30d", ArchiveNow(DAY_NS), now) == 99 * DAY_NS
    assert cutoff_ns("1d", ArchiveNow(30 * DAY_NS), now) == 99 * DAY_NS
    assert cutoff_ns("9999999d", None, now) == 0


def test_a7_when_archive_now_is_done() -> None:
    """archiveNow stays while a later pass may still archive one of its traces (A7)."""

    def check() -> None:
        for fates in itertools.product(ArchiveOutcome, repeat=2):
            terminal = {ArchiveOutcome.ARCHIVED, ArchiveOutcome.GONE, ArchiveOutcome.MALFORMED}
            assert is_archive_now_complete(fates) is (set(fates) <= terminal)
        assert is_archive_now_complete([])

    check()
