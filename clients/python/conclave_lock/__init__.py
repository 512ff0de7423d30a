"""Locks of a Conclave cluster.

::

    from conclave_lock import Client

    client = Client(["http://10.0.0.1:7001", "http://10.0.0.2:7001"])
    with client.lock("jobs/nightly", ttl=10, wait=30) as lock:
        store.write(report, token=lock.token)

Needs nothing but the standard library. Errors are subclasses of :class:`ConclaveError`.
"""

from .client import Client
from .clock import now
from .errors import (
    BadRequest,
    ConclaveError,
    LimitReached,
    Lost,
    NoQuorum,
    NotAcquired,
    NotPermitted,
    Unauthenticated,
)
from .lock import Leader, Lock
from .model import Holder, LockState, Waiter

__version__ = "0.1.0"

__all__ = [
    "BadRequest",
    "Client",
    "ConclaveError",
    "Holder",
    "Leader",
    "LimitReached",
    "Lock",
    "LockState",
    "Lost",
    "NoQuorum",
    "NotAcquired",
    "NotPermitted",
    "Unauthenticated",
    "Waiter",
    "now",
]
