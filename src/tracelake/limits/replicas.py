"""Replicas."""

from typing import Final

REPLICA_HEARTBEAT_S: Final = 3.0
"""How often a replica writes what it does, beside once after each transaction. Beyond: it writes again."""
REPLICA_GONE_S: Final = 12.0
"""How long a replica may write nothing. Beyond: it shows as gone."""
REPLICA_STUCK_S: Final = 120.0
"""How long the work of a replica may not move. Beyond: it shows as stuck; one that fails, at once."""
REPLICA_FORGOTTEN_S: Final = 24 * 3600.0
"""How long the record of a replica that is gone is kept. Beyond: it is deleted."""
