"""The clock by which deadlines are counted."""

from __future__ import annotations

import sys
import time


def _which() -> int | None:
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    if boot is None and sys.platform == "darwin":
        # There it goes on while the machine sleeps, other than time.monotonic().
        boot = getattr(time, "CLOCK_MONOTONIC", None)
    if boot is not None:
        try:
            time.clock_gettime(boot)
        except OSError:
            return None
    return boot


_CLOCK = _which()


def now() -> float:
    """Seconds on a clock that is never set and that counts the time a machine is suspended.

    A clock that stands still during suspend would let a holder believe in a lock which the
    cluster has long given to somebody else.
    """
    if _CLOCK is None:
        return time.monotonic()
    return time.clock_gettime(_CLOCK)
