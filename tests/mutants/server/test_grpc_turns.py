"""Mutants that `tests/server/test_grpc_turns.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.server import test_grpc_turns
from tracelake.server import otlp_grpc as module


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "a socket is emptied", module.emptied, rewrite("with _1:\n    _2(a)", "with _1:\n    _2(1)")
            ),
            test_grpc_turns.check_a_socket_is_emptied,
        ),
        (
            Mutation("also where nothing woke it", module.emptied, rewrite("_1(BlockingIOError)", "_1()")),
            test_grpc_turns.check_a_socket_is_emptied,
        ),
        (
            Mutation(
                "what is behind an error is not left", module.emptied, rewrite("_\nraise", "pass\nraise")
            ),
            test_grpc_turns.check_a_socket_is_emptied,
        ),
        (
            Mutation("the loop is its own again", module.emptied, drop("del _")),
            test_grpc_turns.check_a_socket_is_emptied,
        ),
        (
            Mutation("gRPC's socket is", module.grpc_server, rewrite("with _: ...", "if True: ...")),
            test_grpc_turns.check_no_call_waits_for_a_socket,
        ),
        (
            Mutation("many are asked for", module._Accepting._accept_many, rewrite("range(_)", "range(1)")),
            test_grpc_turns.check_many_are_begun_at_once,
        ),
        (
            Mutation(
                "a call is under no name",
                module._Accepting._accept,
                rewrite("_1(_2, _3)", "call = _3\n_1(_2, call)"),
            ),
            test_grpc_turns.check_ended_calls_leave_nothing,
        ),
        (
            Mutation("tasks are kept", module._Accepting._begin, rewrite("_\n_1", "pass\n_1")),
            test_grpc_turns.check_ended_calls_leave_nothing,
        ),
        (
            Mutation("and no longer than they run", module._Accepting._begin, rewrite("_1\n_", "_1\npass")),
            test_grpc_turns.check_ended_calls_leave_nothing,
        ),
        (
            Mutation(
                "one that cannot be begun ends no other",
                module._Accepting._begin,
                rewrite("Exception", "KeyError"),
            ),
            test_grpc_turns.check_a_call_that_cannot_be_begun,
        ),
        (
            Mutation(
                "all that wait are waited for",
                module._Accepting._accept_many,
                rewrite(
                    """
                    try: ...
                    finally:
                        _
                    """,
                    """
                    try: ...
                    finally:
                        pass
                    """,
                ),
            ),
            test_grpc_turns.check_all_accept_tasks_are_awaited,
        ),
    ],
    ids=rule_of,
)
def test_each_rule_is_needed(broken: Mutation, check: Callable[[], None]) -> None:
    """If a rule is removed, calls wait."""
    assert_caught(broken, check)
