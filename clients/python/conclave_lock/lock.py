"""A lock that is held, and the thread that keeps it."""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable

from .clock import now
from .errors import ConclaveError, Lost

if TYPE_CHECKING:
    from .client import Client
    from .transport import Answer

_log = logging.getLogger("conclave_lock")

_SLICE = 1.0
"""The longest sleep: one that began before a suspend would otherwise go on after it."""
_PAUSE = 0.1
"""How long to rest between two rounds in which no node renewed the lock."""

_HELD, _RELEASED, _LOST, _ELSEWHERE = "held", "released", "lost", "elsewhere"


class Grant:
    """What an answer of the service gives: read once, so that nothing half-read is used."""

    def __init__(self, answer: Answer) -> None:
        body = answer.body
        self.handle = str(body["handle"])
        self.token = int(body["token"])
        self.group = str(body["group"])
        # Counted from the send: the answer may have been on its way for any time.
        self.deadline = answer.sent + (int(body["waited_ms"]) + int(body["valid_ms"])) / 1000
        slot = body.get("slot")
        self.slot = None if slot is None else int(slot)


class _Hold:
    """The state of a held lock. The keeping thread has this, not the ``Lock`` itself."""

    def __init__(
        self,
        client: Client,
        name: bytes,
        ttl: float,
        grant: Grant,
        on_lost: Callable[[Any], None] | None,
    ) -> None:
        self.client = client
        self.name = name
        self.ttl = ttl
        self.grace = ttl / 5
        self.grant = grant
        self.on_lost = on_lost
        self.owner: Callable[[], Lock | None] = lambda: None
        self.state = _HELD
        self.abandoned = False
        self.reason: ConclaveError | None = None
        self.lost = threading.Event()
        self.wake = threading.Event()
        self.mutex = threading.Lock()
        # Held during one renewal, so that a release sends the newest handle.
        self.renewing = threading.Lock()
        self.next_renewal = now() + ttl / 3

    @property
    def cutoff(self) -> float:
        """From here on the holder needs the rest of the time to stop."""
        return self.grant.deadline - self.grace

    def is_held(self) -> bool:
        return self.state == _HELD and now() < self.grant.deadline

    # The keeping thread.

    def keep(self) -> None:
        """Renews until the lock is released or lost."""
        while self.state == _HELD:
            if self.abandoned:
                text = f"lock {self.name!r} was dropped without release()"
                warnings.warn(text, ResourceWarning, stacklevel=2)
                self.client._untracked(self)
                self.release(_SLICE)
                return
            moment = now()
            if moment >= self.cutoff:
                self.end(None)
                return
            wait = min(self.next_renewal, self.cutoff) - moment
            if wait > 0:
                self.wake.wait(min(wait, _SLICE))
                continue
            with self.renewing:
                if self.state == _HELD:
                    self.renew_once()

    def renew_once(self) -> None:
        """Asks one node after the other for a renewal, once each."""
        order = self.client._transport.order()
        for place, endpoint in enumerate(order):
            left = self.cutoff - now()
            if left <= 0 or self.state != _HELD:
                return
            share = max(0.1, left / (len(order) - place))
            until = now() + min(left, share, self.client._transport.patience)
            try:
                grant = self.client._keepalive(endpoint, self.grant.handle, until)
            except Lost as error:
                self.end(error)
                return
            except (ConclaveError, OSError) as error:
                if not isinstance(error, ConclaveError) or error.status == 0:
                    self.client._transport.suspect(endpoint)
                self.reason = _as_error(error, endpoint.url)
                continue
            if now() >= self.grant.deadline:
                # Whatever the answer says: past the deadline the lock may be another's.
                return
            self.client._transport.prefer(endpoint)
            self.grant = grant
            self.reason = None
            self.next_renewal = now() + self.ttl / 3
            return
        self.next_renewal = now() + _PAUSE

    def end(self, why: ConclaveError | None) -> None:
        """The lock is lost."""
        with self.mutex:
            if self.state != _HELD:
                return
            self.state = _LOST
            self.reason = why or self.reason
            self.lost.set()
            self.wake.set()
        self.client._untracked(self)
        _log.warning("lock %r is lost: %s", self.name, self.why())
        callback, lock = self.on_lost, self.owner()
        if callback is not None and lock is not None:
            try:
                callback(lock)
            except Exception:
                _log.exception("on_lost of lock %r failed", self.name)

    def why(self) -> str:
        if self.reason is None:
            return "it could not be renewed in time"
        return str(self.reason)

    # The holder.

    def release(self, patience: float) -> bool:
        with self.mutex:
            if self.state in (_ELSEWHERE, _RELEASED):
                return False
            was_held = self.state == _HELD
            if was_held:
                self.state = _RELEASED
            else:
                # It ends by itself; the nodes need not be waited for.
                patience = min(patience, _SLICE)
            self.wake.set()
        until = now() + patience
        # A renewal under way may bring a newer handle, which alone releases everywhere.
        got = self.renewing.acquire(timeout=patience / 2)
        try:
            return self.client._release(self.grant.handle, until) and was_held
        finally:
            if got:
                self.renewing.release()

    def dropped(self) -> None:
        """Nobody has the lock in hand any more.

        Runs wherever the interpreter collects garbage, so it must not take a mutex.
        """
        self.abandoned = True

    def forked(self) -> None:
        """In a child process: the lock is the parent's."""
        self.state = _ELSEWHERE
        self.mutex = threading.Lock()
        self.renewing = threading.Lock()
        self.wake = threading.Event()
        self.lost = threading.Event()
        self.lost.set()


def _as_error(error: Exception, endpoint: str) -> ConclaveError:
    if isinstance(error, ConclaveError):
        return error
    return ConclaveError(f"{endpoint}: {error}", "unreachable", 0, endpoint)


class Lock:
    """A lock that is held, until it is released or lost.

    Made by :meth:`Client.lock`. As a context manager it is released at the end of the block, and
    the block ends with :class:`Lost` if the lock was lost meanwhile::

        with client.lock("jobs/nightly") as lock:
            store.write(data, token=lock.token)

    A thread renews it every third of its TTL. If that does not succeed, ``lost`` is set a fifth
    of the TTL before ``deadline``: that is the time to stop in. In a child process made by fork the
    lock is not held; it stays the parent's.
    """

    def __init__(self, hold: _Hold) -> None:
        self._hold = hold
        hold.owner = weakref.ref(self)
        finalizer = weakref.finalize(self, hold.dropped)
        finalizer.atexit = False
        name = f"conclave-keep-{hold.name[:32].decode('utf-8', 'replace')}"
        threading.Thread(target=hold.keep, name=name, daemon=True).start()

    @property
    def name(self) -> bytes:
        """The lock's name."""
        return self._hold.name

    @property
    def token(self) -> int:
        """The fencing token: pass it to what the lock protects.

        It is larger than that of every earlier holder that excludes this one. It may grow while
        the lock is held; earlier ones stay good.
        """
        return self._hold.grant.token

    @property
    def group(self) -> str:
        """Who shares the token: pass it along with the token."""
        return self._hold.grant.group

    @property
    def slot(self) -> int | None:
        """Which slot of a semaphore this is, from 1."""
        return self._hold.grant.slot

    @property
    def ttl(self) -> float:
        """How long the lock lasts without renewal, in seconds."""
        return self._hold.ttl

    @property
    def deadline(self) -> float:
        """Until when the lock is held, by :func:`conclave_lock.now`; later with each renewal."""
        return self._hold.grant.deadline

    @property
    def remaining(self) -> float:
        """How long the lock is held if it is not renewed any more, in seconds."""
        return max(0.0, self.deadline - now()) if self.held else 0.0

    @property
    def held(self) -> bool:
        """Whether the lock is held at this moment, as far as this process can know."""
        return self._hold.is_held()

    @property
    def lost(self) -> threading.Event:
        """Set when the lock is lost; a release does not set it."""
        return self._hold.lost

    def check(self) -> None:
        """Raises :class:`Lost` unless the lock is held."""
        hold = self._hold
        if hold.is_held():
            return
        if hold.state == _RELEASED:
            raise Lost("the lock was released", "released")
        if hold.state == _ELSEWHERE:
            raise Lost("the lock is the parent process's; take one of your own", "forked")
        if isinstance(hold.reason, Lost):
            raise hold.reason
        raise Lost(f"the lock is lost: {hold.why()}", "lost") from hold.reason

    def release(self, timeout: float = 3.0) -> bool:
        """Gives the lock back; doing it again does no harm.

        Returns whether the cluster has confirmed it. If no node answers within ``timeout``
        seconds, the lock ends with its TTL.
        """
        self._hold.client._untracked(self._hold)
        return self._hold.release(timeout)

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        hold = self._hold
        late = hold.state == _HELD and now() >= hold.grant.deadline
        if late:
            hold.end(None)
        was_lost = hold.state == _LOST
        self.release()
        if was_lost and kind is None:
            self.check()

    def __repr__(self) -> str:
        hold = self._hold
        return f"<{type(self).__name__} {hold.name!r} {hold.state} token={hold.grant.token}>"


class Leader(Lock):
    """The leadership of an election: a lock whose note is the leader's value."""

    def __init__(self, hold: _Hold, value: bytes) -> None:
        super().__init__(hold)
        self._value = value

    @property
    def value(self) -> bytes:
        """What observers read about this leader."""
        return self._value

    def __enter__(self) -> Leader:
        return self

    def resign(self, timeout: float = 3.0) -> bool:
        """Leads no longer."""
        return self.release(timeout)
