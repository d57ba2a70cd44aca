"""Units of the limits."""

from typing import Final

MIB: Final = 1024 * 1024
