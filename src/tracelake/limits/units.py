"""What limits count in."""

from typing import Final

MIB: Final = 1024 * 1024
