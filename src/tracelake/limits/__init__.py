"""Limits on inputs, queues, retries and waits, one module per section of the limits page.

The last word of a name is its unit. Each docstring names the bounded quantity and, after "Beyond:", the effect of
exceeding it. Use them as `limits.NAME` or import them from this package, whatever their module. The sections follow
the order of the page.
"""

from tracelake.limits.units import *
from tracelake.limits.otlp import *
from tracelake.limits.pipeline import *
from tracelake.limits.kafka import *
from tracelake.limits.replicas import *
from tracelake.limits.reading import *
from tracelake.limits.user_tables import *
from tracelake.limits.shards import *
from tracelake.limits.versions import *
from tracelake.limits.datasets import *
from tracelake.limits.server import *
from tracelake.limits.tracking import *
from tracelake.limits.sign_in import *
from tracelake.limits.audit import *
from tracelake.limits.archive import *
from tracelake.limits.search import *
from tracelake.limits.storage import *
from tracelake.limits.doctor import *
from tracelake.limits.cli import *
