"""Mutants of the server: for each broken rule, a named check fails."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

from tests.server import test_early_answers, test_locations
from tracelake.server import http_policy
from tracelake.server.http_policy import HttpLocations
from tracelake.server.otlp_http import RequestBody


def test_discarding_a_body_without_a_bound_is_caught() -> None:
    """If the rest of a body is read to its end, a client can keep the server reading."""

    async def discard(body: RequestBody) -> bool:
        while (await body.receive())["more_body"]:
            pass
        return True

    with mock.patch.object(RequestBody, "discard", discard), pytest.raises(AssertionError):
        test_early_answers.check_bound_of_bytes()


def test_a_route_that_takes_any_location_is_caught(tmp_path: Path) -> None:
    """If one of the two routes does not check locations, an admin key reaches every file and port."""
    for number, name in enumerate(("check_source", "check_repository")):
        folder = tmp_path / str(number)
        folder.mkdir()
        with (
            mock.patch.object(HttpLocations, name, return_value=None),
            pytest.raises((AssertionError, PermissionError)),
        ):
            test_locations.check_the_server_asks(folder)


def test_locations_whose_links_are_not_resolved_are_caught(tmp_path: Path) -> None:
    """Without the rule, a link below a root leads anywhere."""
    with mock.patch("os.path.realpath", os.path.abspath), pytest.raises(pytest.fail.Exception):
        test_locations.check_locations(tmp_path)


def test_wildcards_that_reach_into_the_lake_are_caught(tmp_path: Path) -> None:
    """Without the check a pattern of a root above the lake reads the lake's own files."""
    with (
        mock.patch.object(http_policy._Place, "may_reach", return_value=False),
        pytest.raises(pytest.fail.Exception),
    ):
        test_locations.check_locations(tmp_path)
