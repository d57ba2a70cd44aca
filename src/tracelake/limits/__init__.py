"""Limits that a user can reach, one module per section of the limits page.

The last word of a name is its unit. Each docstring names the bounded quantity and, after "Beyond:", the effect of
exceeding it. Use them as `limits.NAME` or import them from this package, whatever their module. Other constants, such
as block sizes and polling intervals, belong in the module that uses them.
"""

from tracelake.limits.input import *
from tracelake.limits.pipeline import *
from tracelake.limits.search import *
from tracelake.limits.storage import *
from tracelake.limits.tracking import *
from tracelake.limits.server import *
