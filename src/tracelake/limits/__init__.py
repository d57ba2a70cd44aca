"""Every limit in one place: on inputs, queues, retries and waits, a module for each section of the page.

Units are the last word of a name. Each docstring says what is bounded, and behind "Beyond:" what becomes of what is
more, or later. All are used as `limits.NAME`, or imported from here: where one stands is of no matter to who asks it.
The sections stand in the order of the page.
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
