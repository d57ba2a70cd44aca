"""Versions."""

from typing import Final

from tracelake.limits.units import MIB

REF_NAME_MAX_CHARS: Final = 100
"""The name of a branch or tag. Beyond: it is refused."""
COMMIT_POLL_FIRST_S: Final = 0.0005
"""The first pause of a committer whose request another builds. Beyond: it looks, and the pause doubles."""
COMMIT_POLL_MAX_S: Final = 0.05
"""The longest of these pauses, where looking takes no time. Beyond: it looks."""
COMMIT_POLL_CROWDED_MAX_S: Final = 0.25
"""The longest of all: where a look takes long, so many times longer are pauses as commits are being built. Beyond: it
looks."""
COMMIT_PATIENCE_POLLS: Final = 24
"""How often it looks without seeing progress, about a second in all, some seconds on a crowded store. Beyond: it
builds what is sealed itself."""
COMMIT_RECORDS_CACHED: Final = 1_024
"""Commits, metaranges and ranges that a process remembers. Beyond: it reads them again."""
COMMITS_WITHOUT_METARANGE_MAX: Final = 15
"""Commits in a row, built together, that say only what they change; who reads one goes back as far. Beyond: the next
has a metarange."""
RANGE_ENTRIES_MEAN: Final = 256
"""Entries of a range, on average: it ends behind a path whose hash says so. Beyond: the next range."""
RANGE_ENTRIES_MAX: Final = 8 * RANGE_ENTRIES_MEAN
"""Entries of a range without such a path; one in three thousand is so long. Beyond: it is cut there."""
MERGE_ANCESTORS_MAX: Final = 64
"""How often one merge looks for the ancestors of its ancestors, where merges crossed. Beyond: what lies deeper is
unclear, and a conflict where both sides changed it."""
BRANCH_SEALED_MAX_BYTES: Final = 2 * MIB
"""The record of a branch. Beyond: it takes no further requests until some are built."""
BRANCH_SWEEP_MAX_REQUESTS: Final = 128
"""Requests that are built and answered at once: their answers share the record of the branch. Beyond: the
next sweep."""
ANSWER_DETAIL_MAX_BYTES: Final = 8 * 1024
"""What one such answer says of a refusal, as JSON. Beyond: it is cut; of paths in conflict, the first have room."""
CONFLICTS_TOLD_MAX: Final = 100
"""Paths in conflict that an answer names. Beyond: they are left out."""
COMMIT_REQUEST_MAX_BYTES: Final = 64 * 1024
"""What one commit may put into the record of its branch: message, metadata, and changes that are few. Beyond: it is
refused."""
CHANGES_INLINE_MAX: Final = 32
"""Changes that are few. Beyond: they go into objects."""
CHANGE_SET_ENTRIES_MAX: Final = 10_000
"""Changes in one such object. Beyond: the next object."""
ANSWERS_KEPT_EPOCHS: Final = 1_000
"""Garbage collections for which the id of a request is good: asked again by then, it gives the same commit. Beyond:
it is a new request."""
STAGED_PATH_MAX_BYTES: Final = 960
"""UTF-8 bytes of a path that is staged: its key in the store has a token, too. Beyond: it is refused."""
DAMAGED_ENTRIES_TOLD_MAX: Final = 3
"""Staged entries that cannot be read, in one message. Beyond: they are counted."""
STAGED_LAYERS_MAX: Final = 4
"""Files staged at one path and token, one after the other, that are kept for where a newer one is gone. Beyond: the
oldest is dropped."""
STAGING_READ_TRIES_MAX: Final = 10
"""How often a read of what is staged begins again because a commit came between. Beyond: it is given up."""
BRANCH_ANSWERS_KEPT: Final = 32
"""Answers that stay in the record of a branch, at least. Beyond: older ones have records of their own."""
