"""What request bodies may hold together."""

from __future__ import annotations

import pytest

from tracelake.server.body import Budget
from tracelake.tracking.inbox import BackPressureError


def test_budget_is_shared_and_given_back() -> None:
    """A request alone may hold anything; a second one beyond the budget is refused until the first has ended."""
    budget = Budget(max_bytes=10)
    with budget.share() as first:
        first.take(8)
        with budget.share() as second:
            second.take(2)
            with pytest.raises(BackPressureError, match="in flight"):
                second.take(1)
    with budget.share() as alone:
        alone.take(1_000)
