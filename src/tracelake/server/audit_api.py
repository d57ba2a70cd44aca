"""`/api/v1/audit`: who did what, for keys of admins; those of one workspace are told what was done with keys of it."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Response

from tracelake import limits
from tracelake.access.audit import since_ns
from tracelake.lake.lake import Lake
from tracelake.server.api import json_response
from tracelake.server.auditing import Auditing
from tracelake.server.params import Text
from tracelake.server.routes import AUDIT

Records = Annotated[int, Query(ge=1, le=limits.AUDIT_SHOWN_MAX)]


def audit_api(lake: Lake, auditing: Auditing) -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.get(AUDIT, summary="Who did what, the newest first; `since` is a duration such as 7d")
    def audit(since: Text = None, key: Text = None, limit: Records = limits.AUDIT_SHOWN_DEFAULT) -> Response:
        auditing.settle()
        return json_response({"records": lake.audit.newest(limit, since_ns(since, time.time_ns()), key)})

    return router
