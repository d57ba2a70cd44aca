"""Tracking store: requests of servers until a commit has them, and annotations of MLflow's clients.

Reads of a lake without a tracking store import none of its modules, because SQLAlchemy takes as long as DuckDB.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelake.tracking import annotations, mlflow_search, outbox, store

__all__ = ["annotations", "mlflow_search", "outbox", "store"]


def __getattr__(name: str) -> Any:
    """Import the modules at the first use of one."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import tracelake.tracking.mlflow_search  # noqa: PLC0415  it imports `annotations` and `store`
    import tracelake.tracking.outbox  # noqa: F401, PLC0415

    return globals()[name]
