"""Mutants that `tests/server/test_sign_in_answers.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import httpx
import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.server import test_sign_in_answers
from tests.server.signing_in import Site
from tests.server.test_sign_in_answers import answers, at_answers, serving_answers, told
from tracelake.access import oidc as access_begun
from tracelake.server import access, guard


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "what a browser began is signed", access_begun.verify_state, rewrite("not _(...)", "False")
            ),
            test_sign_in_answers.check_made_up,
        ),
        (
            Mutation("only __Host- over TLS", guard.our_cookies, rewrite("_(_1, _[_])", "_1")),
            test_sign_in_answers.check_over_tls,
        ),
        (
            Mutation("also bare ones over TLS", guard.our_cookies, rewrite("a = _1(_2)", "a = _1(_2, _2)")),
            test_sign_in_answers.check_over_tls,
        ),
        (
            Mutation(
                "__Host- is Secure",
                guard._set,
                rewrite(
                    "_1(_2, _3, a=_4, b=_5, c=_6, d=_7, e=_8)",
                    "_1(_2, _3, a=_4, b=_5, c=_6, d=_7, e=_8 and bool(_3))",
                ),
            ),
            test_sign_in_answers.check_over_tls,
        ),
        (
            Mutation("__Host- has the first path", guard._set, rewrite("_1 and _", "_1")),
            test_sign_in_answers.check_over_tls,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_of_cookies_are_caught(
    told: Site,
    answers: test_sign_in_answers.Answers,
    broken: Mutation,
    check: Callable[[Site, test_sign_in_answers.Answers], None],
) -> None:
    """The checks fail if any rule is removed."""
    assert_caught(broken, lambda: check(told, answers))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("answers are bounded", access._fetched, rewrite("if _: ...", "if False: ...")),
        Mutation("keys are bounded", access._keys_of, rewrite("_ > _", "False")),
        Mutation("what is told is of who signed in", access.Provider.claims, rewrite("_ != _", "False")),
    ],
    ids=rule_of,
)
def test_bad_answers_are_caught(told: Site, answers: test_sign_in_answers.Answers, broken: Mutation) -> None:
    """The checks fail if any bound of responses is removed."""
    assert_caught(broken, lambda: test_sign_in_answers.check_bad_answers(told, answers))


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "what cannot be used is not kept",
                access.Provider._cached,
                rewrite(
                    "_1 = _2(_3)\n_4[_5] = (_6, _1)",
                    "_1 = _4.update({_5: (_6, (each := _3))}) or _2(each)\n_4[_5] = (_6, _1)",
                ),
            ),
            test_sign_in_answers.check_what_is_kept,
        ),
        (
            Mutation("what was begun still counts", access._problem, rewrite("isinstance(_, _)", "False")),
            test_sign_in_answers.check_waiting,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_of_asking_are_caught(
    told: Site,
    answers: test_sign_in_answers.Answers,
    monkeypatch: pytest.MonkeyPatch,
    broken: Mutation,
    check: Any,
) -> None:
    """The checks fail if any rule is removed."""
    assert_caught(broken, lambda: check(told, answers, monkeypatch))


def test_a_redirect_of_the_provider_is_caught(told: Site, answers: test_sign_in_answers.Answers) -> None:
    """The check fails if the server follows redirects of the provider."""
    follows = partial(httpx.AsyncClient, follow_redirects=True)
    with (
        mock.patch.object(access, "httpx", SimpleNamespace(**vars(httpx) | {"AsyncClient": follows})),
        pytest.raises((AssertionError, pytest.fail.Exception)),
    ):
        test_sign_in_answers.check_bad_answers(told, answers)
