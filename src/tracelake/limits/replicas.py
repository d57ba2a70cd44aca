"""Replicas."""

from typing import Final

REPLICA_HEARTBEAT_S: Final = 3.0
"""Heartbeat interval of a replica, which also writes after each transaction. Beyond: the next heartbeat."""
REPLICA_GONE_S: Final = 12.0
"""Time without a heartbeat of a replica. Beyond: it shows as gone."""
REPLICA_STUCK_S: Final = 120.0
"""Time without progress of a replica. Beyond: it shows as stuck; a failing one does so at once."""
REPLICA_FORGOTTEN_S: Final = 24 * 3600.0
"""Retention of a gone replica's record. Beyond: it is deleted."""
