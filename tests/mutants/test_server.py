"""Rules of the server, broken: a named check must fail."""

from __future__ import annotations

from unittest import mock

import pytest

from tests.server import test_early_answers
from tracelake.server.body import RequestBody


def test_discarding_a_body_without_a_bound_is_caught() -> None:
    """If the rest of a body is read to its end, a client can keep the server reading."""

    async def discard(body: RequestBody) -> bool:
        while (await body.receive())["more_body"]:
            pass
        return True

    with mock.patch.object(RequestBody, "discard", discard), pytest.raises(AssertionError):
        test_early_answers.check_bound_of_bytes()
