"""Mutants of the replacement of redacted index parts."""

from __future__ import annotations

from collections.abc import Mapping
from unittest import mock

import pytest
from msgspec.structs import replace

from tests.search.test_protocol import test_redacted_parts_are_replaced as check_redacted
from tracelake.search import protocol
from tracelake.search.model import Redaction

_replacement = protocol.replacement


def _even_unwritten(path: str, redactions: Mapping[str, Redaction]) -> Redaction | None:
    return _replacement(path, {each.path: replace(each, is_written=True) for each in redactions.values()})


def _first(path: str, redactions: Mapping[str, Redaction]) -> Redaction | None:
    redaction = redactions.get(path)
    return redaction if redaction is not None and redaction.is_written else None


@pytest.mark.parametrize("wrong", [_even_unwritten, _first])
def test_a_wrong_replacement_is_caught(wrong: object) -> None:
    """A replacement that an eraser never wrote is not used, and neither is one that was replaced again."""
    with mock.patch.object(protocol, "replacement", wrong), pytest.raises(AssertionError):
        check_redacted()
