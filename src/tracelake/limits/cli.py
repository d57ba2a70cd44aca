"""Command line and demo."""

from typing import Final

SQL_ROWS_SHOWN: Final = 100
"""Rows of a query that a terminal shows, by default. Beyond: they are counted; `--json` has all."""
EXAMPLES_SHOWN: Final = 20
"""Examples of a dataset that `dataset show` shows, by default. Beyond: they are left out, which `--limit` changes."""
DIFF_ENTRIES_SHOWN: Final = 1_000
"""Entries that `diff` shows, by default. Beyond: they are left out, which `--limit` changes."""
PROGRESS_POLL_S: Final = 0.2
"""How often a command that waits looks again. Beyond: it looks again."""
DEMO_START_TIMEOUT_S: Final = 60.0
"""How long the server of the demo may take to start. Beyond: the demo fails with the end of its log."""
DEMO_STOP_TIMEOUT_S: Final = 30.0
"""How long it may take to end. Beyond: it is killed."""
DEMO_EXPORT_TIMEOUT_S: Final = 15
"""How long the exporter of the demo may take to send what it has. Beyond: it gives up, and spans are missing."""
DEMO_COMMIT_TIMEOUT_S: Final = 90.0
"""How long the spans of the demo may take to be committed. Beyond: the demo fails, and says what to try."""
DEMO_POLL_S: Final = 0.5
"""How often the demo looks for them. Beyond: it looks again."""
