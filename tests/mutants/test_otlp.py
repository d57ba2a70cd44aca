"""Mutants of decoding: for each broken rule, a named test fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from tests.otlp import test_bad_payloads, test_containers, test_messages
from tests.otlp.test_columns import NOT_PLAIN, check_not_plain
from tests.otlp.test_columns import test_unusable_values_do_not_hide_the_next_name as check_unusable_values
from tests.server import test_taking
from tracelake import limits
from tracelake._errors import DecodeError
from tracelake.otlp import conventions, decode, messages, parse, values, wire
from tracelake.otlp.framing import Format
from tracelake.otlp.wire import WireError
from tracelake.server import otlp_http


def assert_fails(check: Callable[[], object]) -> None:
    """Run a check that must fail."""
    with pytest.raises(AssertionError):
        check()


def ignore(*_args: Any) -> list[Any]:
    """Return no unknown container."""
    return []


def test_unknown_containers_count_as_rejected() -> None:
    """A decoder that ignores unknown containers is noticed."""
    with mock.patch.object(wire, "in_json_text", ignore):
        assert_fails(test_containers.check_unknown_in_json)
    with mock.patch.object(wire, "take_old_names", ignore):
        assert_fails(test_containers.check_unknown_in_protobuf)
        assert_fails(test_containers.check_old_names)
    with mock.patch.object(wire, "in_parts", ignore):
        assert_fails(test_containers.check_unknown_in_protobuf)


def test_values_stay_readable_and_exact() -> None:
    """A decoder that keeps no exceptions, or treats such values as unreadable, is noticed."""
    with mock.patch.object(values._PlainWriter, "_note", ignore):
        assert_fails(lambda: check_not_plain(*NOT_PLAIN[0]))
    with mock.patch.object(conventions, "READABLE", frozenset("sidbj")):
        assert_fails(lambda: check_not_plain(*NOT_PLAIN[0]))


@pytest.mark.parametrize("bomb", ["resources", "protobuf attributes"])
def test_structure_is_counted_before_parsing(bomb: str) -> None:
    """A server that parses before it counts is noticed."""
    with mock.patch.object(otlp_http, "_check_structure", ignore), pytest.raises(pytest.fail.Exception):
        test_taking.check_counted_before_parsed(bomb)


def test_careful_pass_is_bounded() -> None:
    """A careful pass without a separate limit is noticed."""
    with (
        mock.patch.object(limits, "OTLP_CAREFUL_VALUES_MAX", limits.OTLP_REQUEST_VALUES_MAX),
        pytest.raises((AssertionError, pytest.fail.Exception, DecodeError)),
    ):
        test_taking.check_careful_bound()


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_one_byte_costs_no_span(format: Format) -> None:
    """A decoder that does not replace invalid bytes is noticed."""

    def refuse(*_args: Any) -> Any:
        raise WireError("not replaced")

    with (
        mock.patch.object(decode, "replace_bad_bytes", lambda payload: (payload, [])),
        mock.patch.object(parse, "replace_bad_text", refuse),
        pytest.raises((AssertionError, IndexError)),
    ):
        test_bad_payloads.check_not_utf8(format)


def test_first_present_name_wins() -> None:
    """If only the first present name is a candidate, an unusable value hides the next name."""
    sources = conventions._sources

    def first_only(keys: Sequence[str], present: Any) -> list[tuple[str, list[tuple[str, int]]]]:
        return [(column, found[:1]) for column, found in sources(keys, present)]

    with mock.patch.object(conventions, "_sources", first_only), pytest.raises(AssertionError):
        check_unusable_values("session_id")


def test_messages_are_all_taken_in_order() -> None:
    """A decoder that takes only the first message, or sorts numbers as text, is noticed."""
    joined = messages._joined
    with mock.patch.object(messages, "_joined", lambda several: joined(list(several)[:1])):
        assert_fails(test_messages.check_numbered)
        assert_fails(test_messages.check_events)

    def as_text(items: Any, **_: Any) -> list[Any]:
        return sorted(items, key=str)

    with mock.patch.object(messages, "sorted", as_text, create=True):
        assert_fails(test_messages.check_numbered)


def test_messages_need_a_bound() -> None:
    """A decoder that takes any number of messages is noticed."""
    with mock.patch.object(messages, "MESSAGES_MAX", limits.MESSAGES_MAX * 2):
        assert_fails(test_messages.check_bounds)
