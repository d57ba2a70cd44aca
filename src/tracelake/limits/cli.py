"""Command line and demo."""

from typing import Final

SQL_ROWS_SHOWN: Final = 100
"""Rows of a query that a terminal shows by default. Beyond: they are counted; `--json` prints all."""
EXAMPLES_SHOWN: Final = 20
"""Examples that `dataset show` shows by default. Beyond: they are omitted; `--limit` raises it."""
DIFF_ENTRIES_SHOWN: Final = 1_000
"""Entries that `diff` shows by default. Beyond: they are omitted; `--limit` raises it."""
PROGRESS_POLL_S: Final = 0.2
"""Polling interval of a command that waits. Beyond: the next poll."""
DEMO_START_TIMEOUT_S: Final = 60.0
"""Start-up time of the demo's server. Beyond: the demo fails and prints the end of the server's log."""
DEMO_STOP_TIMEOUT_S: Final = 30.0
"""Shutdown time of the demo's server. Beyond: it is killed."""
DEMO_EXPORT_TIMEOUT_S: Final = 15
"""Time that the demo's exporter may need to send its spans. Beyond: it stops, and spans are missing."""
DEMO_COMMIT_TIMEOUT_S: Final = 90.0
"""Time until the demo's spans are committed. Beyond: the demo fails and suggests what to try."""
DEMO_POLL_S: Final = 0.5
"""Interval at which the demo polls for its spans. Beyond: the next poll."""
