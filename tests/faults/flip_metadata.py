"""Flip single bits of `metadata.db` and run `verify`: the third part of `python -m tests.campaigns flips`.

    python -m tests.faults.flip_metadata --seconds 60 --seed 7

An error or a finding of `verify` must report each flip, or the flip is harmless: all rows read as before.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import tracelake
from tests.everything import build
from tracelake import TracelakeError


class Campaign:
    """A lake on disk; each round flips one bit of its metadata and repairs it."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._chance = chance
        self.place = folder / "lake"
        build(self.place.as_uri(), folder).close()
        self.database = self.place / "metadata.db"
        with closing(sqlite3.connect(self.database)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            db.execute("PRAGMA journal_mode = DELETE").fetchall()
        with tracelake.open(self.place) as lake:
            assert lake.verify().ok
        self._whole = self.database.read_bytes()
        self._rows = read_rows(self.database)
        assert self._rows
        self.wrong: list[str] = []
        self.rounds = self.seen = 0

    def flips(self) -> Iterator[str]:
        """Flip one bit of each byte, nonzero bytes first; yield a description."""
        order = self._chance.sample(range(len(self._whole)), len(self._whole))
        for at in sorted(order, key=lambda at: not self._whole[at]):
            bit = self._chance.randrange(8)
            self.flip(at, bit)
            yield f"bit {bit} of byte {at}"

    def flip(self, at: int, bit: int) -> None:
        """Flip one bit, and check the report of `verify`."""
        self.rounds += 1
        flipped = bytearray(self._whole)
        flipped[at] ^= 1 << bit
        for name in ("-wal", "-shm", "-journal"):
            Path(f"{self.database}{name}").unlink(missing_ok=True)
        self.database.write_bytes(flipped)
        rows = read_rows(self.database)
        try:
            with tracelake.open(self.place) as lake:
                is_seen = not lake.verify().ok
        except TracelakeError:
            is_seen = True
        except Exception as error:  # noqa: BLE001  a defect of any kind; the campaign goes on
            is_seen = True
            self._note(at, bit, repr(error))
        self.seen += is_seen
        if not is_seen and rows != self._rows:
            self._note(at, bit, "verify reports nothing, and rows differ")

    def _note(self, at: int, bit: int, problem: str) -> None:
        self.wrong.append(f"bit {bit} of byte {at} of metadata.db: {problem}")
        print(self.wrong[-1], flush=True)


def read_rows(database: Path) -> list[Any] | None:
    """Return all rows in order of their keys; None if they cannot be read."""
    copy = database.with_name("copy.db")
    shutil.copyfile(database, copy)
    try:
        with closing(sqlite3.connect(f"{copy.as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            db.text_factory = bytes
            # Both copies of the keys: the index is read for lookups, and the table for the values.
            rows = db.execute("SELECT * FROM records NOT INDEXED").fetchall()
            keys = db.execute("SELECT partition, key FROM records ORDER BY partition, key").fetchall()
            return [sorted(rows, key=repr), keys]
    except (sqlite3.Error, UnicodeDecodeError):
        return None
    finally:
        copy.unlink()


def main() -> int:
    """Run the campaign; the exit code is 1 if a flip was neither reported nor harmless."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0, help="0: until each byte had its turn")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    end_s = time.monotonic() + options.seconds if options.seconds else float("inf")
    with tempfile.TemporaryDirectory(prefix="tracelake-flips-") as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        campaign = Campaign(Path(folder), random.Random(options.seed))
        for _ in campaign.flips():
            if time.monotonic() > end_s:
                break
    print(f"{campaign.rounds} rounds, {campaign.seen} reported, {len(campaign.wrong)} wrong")
    return 1 if campaign.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
