"""A process that works on the archive of a lake again and again until it is killed.

    python -m tests.faults.archive_process LAKE archiver SEED
    python -m tests.faults.archive_process LAKE user SEED

An archiver makes a pass every two seconds and sweeps after some passes, including other processes' uploads. A user
restores and deletes traces and changes the layout. Each completed action is a line on standard output; a deletion
is also a line before it begins. Actions that a store refuses are retried; any other error ends the process.
"""

from __future__ import annotations

import random
import sys
import time

from sqlalchemy import select

import tracelake
from tracelake import Lake
from tracelake._errors import ContentionError, NotFoundError, StorageError
from tracelake.archive.model import LAYOUTS
from tracelake.tracking.schema import ARCHIVE_REPO, trace_info

PASS_EVERY_S = 2.0
DOES_EVERY_S = 0.3


def tell(*words: object) -> None:
    """Write a line."""
    print(*words, flush=True)


def archive(lake: Lake, rng: random.Random) -> None:
    """Make a pass, and sweep now and then."""
    tell("pass", lake.archive.run().line)
    if rng.random() < 0.4:
        tell("swept", lake.archive.sweep(rng.choice([0, 0, 3600])))


def use(lake: Lake, rng: random.Random) -> None:
    """Restore, delete, or change the layout of the next archive passes."""
    chance = rng.random()
    if chance < 0.02:
        layout = rng.choice(list(LAYOUTS))
        lake.archive.configure(layout=layout)
        tell("layout", layout)
    elif chance < 0.8:
        for trace_id in _some(lake, rng, archived=True):
            tell("restored", trace_id, lake.archive.restore(trace_id))
    else:
        ids = _some(lake, rng, archived=rng.random() < 0.5)
        tell("deleting", *ids)
        tell("deleted", *lake.archive.delete(ids))


def _some(lake: Lake, rng: random.Random, *, archived: bool) -> list[str]:
    """Return a few random traces."""
    store, info = lake.hot.store, trace_info.c
    assert store is not None
    is_there = info.spans_location == ARCHIVE_REPO
    query = select(info.trace_id).where(info.lake == store.lake, is_there if archived else ~is_there)
    after = f"{rng.randint(0, 4):016x}{rng.getrandbits(rng.randint(1, 14)):016x}"
    query = query.where(info.trace_id >= after).order_by(info.trace_id).limit(rng.choice([1, 1, 3]))
    with store.database.reading() as connection:
        return list(connection.execute(query).scalars())


def main() -> None:
    """Go on until killed."""
    path, role, seed = sys.argv[1:]
    rng = random.Random(int(seed))
    does, every_s = {"archiver": (archive, PASS_EVERY_S), "user": (use, DOES_EVERY_S)}[role]
    with tracelake.open(path) as lake:
        while True:
            time.sleep(rng.uniform(0, 2 * every_s))
            try:
                does(lake, rng)
            except (StorageError, ContentionError, NotFoundError) as error:
                tell("again", type(error).__name__, error)


if __name__ == "__main__":
    main()
