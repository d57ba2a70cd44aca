"""The vectors of several parts become those of one, as they are: the function is not asked again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tracelake.scratch import scratch_directory
from tracelake.search.cache import PartCache
from tracelake.search.live import RowIds
from tracelake.search.model import PartRef
from tracelake.search.vector_block import FILE, BlockWriter, check_block, read_block
from tracelake.search.vectors import PartVectors, VectorSettings
from tracelake.storage.ports import ObjectStore


def write_joined(
    directory: Path,
    objects: ObjectStore,
    parts: Sequence[PartRef],
    live: RowIds,
    settings: VectorSettings,
) -> PartVectors:
    """Write the vectors of these rows, sorted, out of parts that have them, and say what there is.

    Raises DamageError where a part is missing or altered, or has not what its manifest says.
    """
    with scratch_directory("join") as scratch:
        PartCache(objects, scratch).fetch(parts, {})
        writer = BlockWriter(directory, settings)
        try:
            for part in parts:
                block = read_block(scratch / part.sha256 / FILE, part.path)
                check_block(block, part, settings)
                writer.join(block, np.flatnonzero(np.isin(block.rows, live)))
            vectors = writer.finish()
        finally:
            writer.close()
    # Which rows failed nobody has written down: some of them may be those that are gone.
    failed = sum(part.vectors.failed for part in parts if part.vectors is not None)
    return PartVectors(
        fingerprint=settings.fingerprint, vectors=vectors, failed=min(failed, len(live) - vectors)
    )
