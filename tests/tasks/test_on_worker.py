"""Behaviour of a worker before and after a task."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tracelake.tasks import spark
from tracelake.tasks.spark import OnWorker, version_here

pytestmark = pytest.mark.usefixtures("unfrozen")


@pytest.fixture(name="unfrozen")
def fixture_unfrozen() -> Iterator[None]:
    """Act as a new worker; afterwards garbage collection covers all objects again, as in other tests."""
    spark._keep_imports.cache_clear()
    yield
    spark._keep_imports.cache_clear()
    gc.unfreeze()


def test_a_worker_of_another_version_does_nothing() -> None:
    """A worker with another version refuses the task, and the error names both versions."""
    done = list[int]()
    with pytest.raises(RuntimeError, match=r"has tracelake .*, and this process has 0\.0\.9"):
        OnWorker(done.append, "0.0.9")(1)
    assert done == []
    OnWorker(done.append, version_here())(1)
    assert done == [1]


def imports_are_set_aside() -> None:
    """Run a task in a new worker."""
    spark._keep_imports.cache_clear()
    gc.unfreeze()
    sent: OnWorker[int, int] = OnWorker(abs, version_here())
    assert sent(-1) == 1
    assert gc.get_freeze_count() > 10_000


def test_what_imports_made_is_set_aside_once() -> None:
    """Imported objects are frozen once, so that Spark's garbage collection after each task need not scan them."""
    imports_are_set_aside()
    spark._keep_imports(1)
    gc.unfreeze()
    spark._keep_imports(1)
    assert gc.get_freeze_count() == 0
