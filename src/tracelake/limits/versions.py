"""Versions."""

from typing import Final

from tracelake.limits.units import MIB

REF_NAME_MAX_CHARS: Final = 100
"""Name of a branch or tag. Beyond: it is refused."""
COMMIT_POLL_FIRST_S: Final = 0.0005
"""First pause of a committer whose request another committer builds. Beyond: it polls, and the pause doubles."""
COMMIT_POLL_MAX_S: Final = 0.05
"""Longest of these pauses if a poll is quick. Beyond: the next poll."""
COMMIT_POLL_CROWDED_MAX_S: Final = 0.25
"""Longest pause on a crowded store; it is the duration of a poll times the number of commits being built. Beyond: the
next poll."""
COMMIT_PATIENCE_POLLS: Final = 24
"""Polls without progress, about a second in all, some seconds on a crowded store. Beyond: the committer builds the
sealed requests itself."""
COMMIT_RECORDS_CACHED: Final = 1_024
"""Commits, metaranges and ranges that a process caches. Beyond: it reads them again."""
COMMITS_WITHOUT_METARANGE_MAX: Final = 15
"""Consecutive commits, built together, that store only their changes; a reader goes back as far. Beyond: the next has
a metarange."""
RANGE_ENTRIES_MEAN: Final = 256
"""Mean entries of a range; it ends after a path whose hash marks a boundary. Beyond: the next range."""
RANGE_ENTRIES_MAX: Final = 8 * RANGE_ENTRIES_MEAN
"""Entries of a range without such a path; one in three thousand is so long. Beyond: it is cut there."""
MERGE_ANCESTORS_MAX: Final = 64
"""Levels of common ancestors that one merge resolves, if merges crossed. Beyond: deeper history is unclear, and a
conflict if both sides changed it."""
BRANCH_SEALED_MAX_BYTES: Final = 2 * MIB
"""Record of a branch. Beyond: it accepts no further requests until some are built."""
BRANCH_SWEEP_MAX_REQUESTS: Final = 128
"""Requests that are built and answered at once, because their answers share the branch record. Beyond: the next
sweep."""
ANSWER_DETAIL_MAX_BYTES: Final = 8 * 1024
"""Details of a refusal in one answer, as JSON. Beyond: they are truncated; the first conflicting paths have room."""
CONFLICTS_TOLD_MAX: Final = 100
"""Conflicting paths that an answer names. Beyond: they are omitted."""
COMMIT_REQUEST_MAX_BYTES: Final = 64 * 1024
"""Contribution of one commit to its branch record: message, metadata, and inline changes. Beyond: it is refused."""
CHANGES_INLINE_MAX: Final = 32
"""Changes stored inline. Beyond: they go into objects."""
CHANGE_SET_ENTRIES_MAX: Final = 10_000
"""Changes in one such object. Beyond: the next object."""
ANSWERS_KEPT_EPOCHS: Final = 1_000
"""Garbage collections for which a request id stays valid; a repeated request returns the same commit. Beyond: it
counts as a new request."""
STAGED_PATH_MAX_BYTES: Final = 960
"""UTF-8 bytes of a staged path; its key in the store also contains a token. Beyond: it is refused."""
DAMAGED_ENTRIES_TOLD_MAX: Final = 3
"""Unreadable staged entries in one message. Beyond: they are counted."""
STAGED_LAYERS_MAX: Final = 4
"""Files staged in turn at one path and token that are kept in case a newer one is gone. Beyond: the oldest is
dropped."""
STAGING_READ_TRIES_MAX: Final = 10
"""Restarts of a read of staged changes because of a concurrent commit. Beyond: it fails."""
BRANCH_ANSWERS_KEPT: Final = 32
"""Minimum number of answers that stay in a branch record. Beyond: older ones have separate records."""
