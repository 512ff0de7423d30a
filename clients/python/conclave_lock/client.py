"""The client of a cluster."""

from __future__ import annotations

import atexit
import http.client
import itertools
import json
import os
import random
import secrets
import socket
import threading
import time
import urllib.parse
import weakref
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Callable, TypeVar

from . import model
from .clock import now
from .errors import (
    BadRequest,
    ConclaveError,
    LimitReached,
    Lost,
    NoQuorum,
    NotAcquired,
    of_answer,
)
from .lock import Grant, Leader, Lock, _Hold
from .model import Holder, LockState, Text
from .transport import Answer, Endpoint, Refused, Tls, Transport, endpoints_of

_WAIT_TTLS = 100
"""How many TTLs the service lets one request wait."""
_PAUSE_MAX = 0.5
_EXIT_PATIENCE = 1.0
_WATCH_SILENCE = 16.0
"""A watch is never silent for so long: its node says every 5 seconds that it is there."""
_AT_THIS_NODE = frozenset(["too_many_waiters", "too_many_connections", "too_many_watchers"])
"""Limits that another node may not have reached."""

_L = TypeVar("_L", bound=Lock)

_TROUBLE = (OSError, http.client.HTTPException)


class Client:
    """A client of a Conclave cluster, for any number of threads.

    :param endpoints: URLs of nodes, as a list or separated by commas; ``CONCLAVE_ENDPOINTS`` if
        left out. One is enough, but only the nodes that are named can stand in for each other.
    :param token: a bearer token, if the cluster wants one.
    :param ca: the file with the certificates of those who sign the nodes' certificates.
    :param cert: the file with this client's certificate, for mutual TLS.
    :param key: the file with its private key.
    :param timeout: how long the cluster may be out of reach, in seconds, before a call fails
        with :class:`NoQuorum`.
    :param owner: who this is, for people who look at a lock; host and process if left out.
    :param allow_plain: sends the token over plain HTTP, to whoever listens there.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] | None = None,
        token: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        timeout: float = 10.0,
        owner: str | None = None,
        allow_plain: bool = False,
    ) -> None:
        found = endpoints_of(endpoints)
        if token is not None:
            token = token.strip()
            if not token or any(ord(letter) <= 32 or ord(letter) > 126 for letter in token):
                raise ValueError("the bearer token must be printable ASCII without spaces")
            open_ones = [one.url for one in found if not one.secure]
            if open_ones and not allow_plain:
                raise ValueError(f"{open_ones[0]}: a bearer token needs https")
        if timeout <= 0:
            raise ValueError("timeout must be more than 0 seconds")
        plain = [one.url for one in found if not one.secure]
        if plain and (ca is not None or cert is not None):
            raise ValueError(f"{plain[0]} is plain HTTP, where certificates do not count: https?")
        secure = any(one.secure for one in found)
        tls = Tls(ca, cert, key) if secure else None
        if tls is not None:
            tls.context()
        self.timeout = timeout
        self._owner = owner if owner is not None else f"{socket.gethostname()} {os.getpid()}"
        self._transport = Transport(found, tls, token)
        self._pid = os.getpid()
        self._mutex = threading.Lock()
        self._holds: set[_Hold] = set()
        _clients.add(self)

    @classmethod
    def from_env(cls, timeout: float = 10.0) -> Client:
        """A client of the cluster that ``CONCLAVE_ENDPOINTS``, ``CONCLAVE_CA``,
        ``CONCLAVE_CERT``, ``CONCLAVE_KEY`` and ``CONCLAVE_BEARER_FILE`` name."""
        ca, cert, key = (os.environ.get(f"CONCLAVE_{name}") or None for name in _FILES)
        bearer = os.environ.get("CONCLAVE_BEARER_FILE")
        token = None
        if bearer:
            with open(bearer, encoding="ascii") as file:
                token = file.read().strip()
        return cls(None, token, ca, cert, key, timeout)

    # Locks.

    def lock(
        self,
        name: Text,
        mode: str = "exclusive",
        group: Text | None = None,
        ttl: float = 10.0,
        wait: float | None = None,
        owner: str | None = None,
        note: Text | None = None,
        slots: int | None = None,
        on_lost: Callable[[Lock], None] | None = None,
    ) -> Lock:
        """Takes a lock and keeps it until it is released.

        :param mode: ``"exclusive"``, or ``"shared"`` for readers.
        :param group: shares the lock with everyone who asks for the same group.
        :param ttl: how long the lock lasts, in seconds, when its holder is gone.
        :param wait: how long to wait for it: ``None`` without limit, 0 not at all.
        :param owner: who asks, for people who look at the lock.
        :param note: what others may read about the holder.
        :param slots: takes one of so many slots, a semaphore; all must ask for the same number.
        :param on_lost: called with the lock, in another thread, when the lock is lost.
        :raises NotAcquired: somebody else was inside until the wait was over.
        :raises NoQuorum: too few nodes could be reached.

        Ending the wait by an exception, ``KeyboardInterrupt`` for example, cancels the request.
        """
        wish = self._wish(mode, group, ttl, owner, note, slots)
        hold = self._acquire(_bytes(name), wish, ttl, wait, on_lost)
        return self._kept(hold, lambda: Lock(hold))

    def try_lock(self, name: Text, **options: Any) -> Lock | None:
        """Takes a lock if nobody is in the way, else gives ``None``. Options as of :meth:`lock`."""
        try:
            return self.lock(name, wait=0, **options)
        except NotAcquired:
            return None

    def elect(
        self,
        name: Text,
        value: Text,
        ttl: float = 10.0,
        wait: float | None = None,
        owner: str | None = None,
        on_lost: Callable[[Lock], None] | None = None,
    ) -> Leader:
        """Waits until this process leads, and tells ``value`` to all who observe the election.

        A leader is who holds the exclusive lock ``name``; its value cannot be changed while it
        leads.
        """
        wish = self._wish("exclusive", None, ttl, owner, value, None)
        hold = self._acquire(_bytes(name), wish, ttl, wait, on_lost)
        return self._kept(hold, lambda: Leader(hold, _bytes(value)))

    def leader(self, name: Text) -> Holder | None:
        """Who leads the election ``name`` now; its value is the ``note``."""
        return self.show(name).leader

    # Looking.

    def show(self, name: Text) -> LockState:
        """Who holds a lock and who waits."""
        return model.lock_state(self._get(f"/v1/locks/{_quoted(name)}"))

    def locks(self, prefix: Text = "", limit: int | None = None) -> list[LockState]:
        """The locks with a request whose names begin with ``prefix``, by name."""
        found: list[LockState] = []
        cursor: str | None = None
        while limit is None or len(found) < limit:
            page = 1000 if limit is None else min(1000, limit - len(found))
            query = {"prefix": _bytes(prefix), "limit": str(page)}
            if cursor is not None:
                query["cursor"] = cursor
            told = self._get("/v1/locks?" + urllib.parse.urlencode(query))
            partial = bool(told.get("partial"))
            found.extend(model.lock_state(row, partial) for row in told.get("locks", []))
            cursor = told.get("next")
            if cursor is None:
                break
        return found

    def status(self) -> dict[str, Any]:
        """How the nodes do, as ``GET /v1/status`` tells it."""
        return self._get("/v1/status")

    def watch(self, name: Text) -> Generator[LockState, None, None]:
        """The state of a lock now, and again whenever it changes.

        States may be skipped, and a holder is never followed by one with a smaller token of
        another group. When the node that tells it goes away another one is asked; the iterator
        ends only by an error, or when it is closed.
        """
        highest, group = 0, ""
        for state in self._watch(f"/v1/locks/{_quoted(name)}/watch"):
            top = state.leader
            if top is not None and top.token is not None:
                if top.token < highest and top.group != group:
                    # Another node that is behind the one before.
                    continue
                if top.token >= highest:
                    highest, group = top.token, top.group
            yield state

    def watch_prefix(self, prefix: Text = "") -> Generator[LockState, None, None]:
        """As :meth:`watch`, of every lock whose name begins with ``prefix``.

        The names that there are come first. A lock that is free again is told once, as empty.
        """
        query = urllib.parse.urlencode({"prefix": _bytes(prefix)})
        return self._watch(f"/v1/watch?{query}")

    def observe(self, name: Text) -> Generator[Holder | None, None, None]:
        """Who leads the election ``name``, and again whenever that changes; ``None`` is nobody.

        Never goes back to a leader with a smaller token.
        """
        last: tuple[Any, ...] = ("nothing yet",)
        highest = 0
        for state in self.watch(name):
            leader = state.leader
            if leader is not None and leader.token is not None:
                if leader.token < highest:
                    continue
                highest = leader.token
            key = () if leader is None else (leader.token, leader.note)
            if key != last:
                last = key
                yield leader

    def close(self) -> None:
        """Releases every lock that is still held through this client, and its connections."""
        for hold in self._held():
            self._untracked(hold)
            hold.release(_EXIT_PATIENCE)
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {', '.join(one.url for one in self._transport.endpoints)}>"

    # How it is done.

    def _wish(
        self,
        mode: str,
        group: Text | None,
        ttl: float,
        owner: str | None,
        note: Text | None,
        slots: int | None,
    ) -> dict[str, Any]:
        if mode not in ("exclusive", "shared"):
            raise ValueError("mode must be 'exclusive' or 'shared'; for a group give group=")
        if group is not None and mode == "shared":
            raise ValueError("a lock is either shared or for a group")
        if not 0 < ttl < 1e9:
            raise ValueError("ttl must be more than 0 seconds")
        wish: dict[str, Any] = {
            "mode": mode if group is None else {"group": model.to_json(group)},
            "ttl_ms": int(ttl * 1000),
            # The service takes requests with the same id for one, so that they may be repeated.
            "id": secrets.token_hex(16),
            "owner": self._owner if owner is None else owner,
        }
        if note is not None:
            wish["note"] = model.to_json(note)
        if slots is not None:
            wish["slots"] = slots
        return wish

    def _acquire(
        self,
        name: bytes,
        wish: dict[str, Any],
        ttl: float,
        wait: float | None,
        on_lost: Callable[[Any], None] | None,
    ) -> _Hold:
        if wait is not None and wait < 0:
            raise ValueError("wait must be None, or at least 0 seconds")
        until = None if wait is None else now() + wait
        path = f"/v1/locks/{_quoted(name)}/acquire"
        longest = ttl * _WAIT_TTLS

        def left() -> float:
            return longest if until is None else min(longest, max(0.0, until - now()))

        def body() -> dict[str, Any]:
            return dict(wish, wait_ms=int(left() * 1000))

        while True:
            try:
                grant = Grant(self._reach("POST", path, body, left))
            except NotAcquired:
                # The service waits in whole milliseconds, and a hundred TTLs at most.
                if until is None or until - now() > 0.05:
                    continue
                raise
            hold = _Hold(self, name, ttl, grant, on_lost)
            if now() < hold.cutoff:
                with self._mutex:
                    self._holds.add(hold)
                return hold
            # It came so late that there is no time to use it.
            self._release(grant.handle, now() + self._transport.patience)
            if until is not None and now() >= until:
                raise NotAcquired("the lock came too late to be of use; ask again", "not_acquired")

    def _kept(self, hold: _Hold, make: Callable[[], _L]) -> _L:
        """The lock with its thread; without a thread it would be lost soon, so it is released."""
        try:
            return make()
        except BaseException:
            self._untracked(hold)
            hold.release(_EXIT_PATIENCE)
            raise

    def _get(self, path: str) -> dict[str, Any]:
        told = self._reach("GET", path, lambda: None).body
        if not isinstance(told, dict):
            raise NoQuorum("the endpoint does not answer as a node does; is it one?", "unreachable")
        return told

    def _reach(
        self,
        method: str,
        path: str,
        body: Callable[[], dict[str, Any] | None],
        wait: Callable[[], float] | None = None,
    ) -> Answer:
        """Asks one node after the other until one has an answer that counts for all.

        Gives up when no node could answer for ``timeout`` seconds or, if the caller waits for
        something, when its time is over; every node is asked once at least.
        """
        trouble_since: float | None = None
        pause = 0.05
        for turn in itertools.count():
            troubles: list[str] = []
            error: ConclaveError | None = None
            for endpoint in self._transport.order():
                waits = 0.0 if wait is None else wait()
                begun = now()
                until = begun + waits + self._transport.patience
                try:
                    answer = self._transport.ask(endpoint, method, path, body(), until, turn)
                except _TROUBLE as problem:
                    self._transport.suspect(endpoint)
                    troubles.append(f"{endpoint.url}: {_told(problem)}")
                else:
                    if answer.status == 200:
                        self._transport.prefer(endpoint)
                        return answer
                    error = of_answer(answer.status, answer.body, endpoint.url)
                    if not _another_may_help(error):
                        self._transport.prefer(endpoint)
                        raise error
                if trouble_since is None or now() - begun > self.timeout:
                    # A node that waited for us for long was well until now.
                    trouble_since = now()
            over = trouble_since is not None and now() - trouble_since >= self.timeout
            if over or (wait is not None and wait() <= 0):
                if error is not None:
                    raise error
                raise NoQuorum("no node can be reached: " + "; ".join(troubles), "unreachable")
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(_PAUSE_MAX, pause * 2)
        raise AssertionError("unreachable")

    def _keepalive(self, endpoint: Endpoint, handle: str, until: float) -> Grant:
        body = {"handle": handle}
        try:
            answer = self._transport.ask(endpoint, "POST", "/v1/locks/keepalive", body, until)
        except http.client.HTTPException as problem:
            raise NoQuorum(f"{endpoint.url}: {_told(problem)}", "unreachable") from problem
        if answer.status != 200:
            raise of_answer(answer.status, answer.body, endpoint.url)
        try:
            return Grant(answer)
        except (KeyError, TypeError, ValueError) as problem:
            raise NoQuorum(f"{endpoint.url}: not an answer of a node", "unreachable") from problem

    def _release(self, handle: str, until: float) -> bool:
        """Releases a handle at the first node that answers."""
        body = {"handle": handle}
        order = self._transport.order()
        for place, endpoint in enumerate(order):
            left = until - now()
            if left <= 0:
                return False
            share = now() + max(0.1, left / (len(order) - place))
            try:
                answer = self._transport.ask(
                    endpoint, "POST", "/v1/locks/release", body, min(until, share)
                )
            except _TROUBLE:
                self._transport.suspect(endpoint)
                continue
            if answer.status == 200:
                return True
            error = of_answer(answer.status, answer.body, endpoint.url)
            if isinstance(error, (Lost, BadRequest)):
                return False
        return False

    def _watch(self, path: str) -> Generator[LockState, None, None]:
        trouble_since: float | None = None
        while True:
            error: ConclaveError | None = None
            troubles: list[str] = []
            for endpoint in self._transport.order():
                try:
                    for event in self._events(endpoint, path):
                        trouble_since = None
                        yield event
                    troubles.append(f"{endpoint.url}: it ended the watch")
                except Refused as refused:
                    answer = refused.answer
                    error = of_answer(answer.status, answer.body, endpoint.url)
                    if not _another_may_help(error):
                        raise error from None
                except _TROUBLE as problem:
                    self._transport.suspect(endpoint)
                    troubles.append(f"{endpoint.url}: {_told(problem)}")
                trouble_since = now() if trouble_since is None else trouble_since
            if trouble_since is not None and now() - trouble_since >= self.timeout:
                raise error or NoQuorum("no node can be reached: " + "; ".join(troubles))
            time.sleep(random.uniform(0.05, 0.2))

    def _events(self, endpoint: Endpoint, path: str) -> Iterator[LockState]:
        """The states that one node tells, as server-sent events."""
        data: list[str] = []
        for line in self._transport.lines(endpoint, path, _WATCH_SILENCE):
            if line.startswith("data:"):
                data.append(line[5:].lstrip(" "))
            if line or not data:
                # A comment, an id, or another line of the same event.
                continue
            told = json.loads("\n".join(data))
            data = []
            if isinstance(told, dict) and "error" in told:
                raise Refused(Answer(endpoint, now(), int(told.get("status", 503)), told))
            if isinstance(told, dict) and "holders" in told:
                self._transport.prefer(endpoint)
                yield model.lock_state(told)

    def _untracked(self, hold: _Hold) -> None:
        with self._mutex:
            self._holds.discard(hold)

    def _held(self) -> list[_Hold]:
        with self._mutex:
            return list(self._holds)

    def _forked(self) -> None:
        self._mutex = threading.Lock()
        self._pid = os.getpid()
        for hold in self._holds:
            hold.forked()
        self._holds = set()
        self._transport.forked()


_FILES = ("CA", "CERT", "KEY")
_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _bytes(text: Text) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else bytes(text)


def _quoted(name: Text) -> str:
    quoted = urllib.parse.quote(_bytes(name), safe="/")
    # Segments of dots would be taken for steps in a tree of folders by what is on the way.
    steps = (one.replace(".", "%2E") if set(one) == {"."} else one for one in quoted.split("/"))
    return "/".join(steps)


def _told(problem: BaseException) -> str:
    if isinstance(problem, http.client.BadStatusLine):
        return f"no HTTP answer ({problem}); does the node speak TLS (https)?"
    return str(problem) or type(problem).__name__


def _another_may_help(error: ConclaveError) -> bool:
    if isinstance(error, LimitReached):
        return error.code in _AT_THIS_NODE
    return isinstance(error, NoQuorum)


def _after_fork() -> None:
    for client in list(_clients):
        client._forked()


def _at_exit() -> None:
    until = now() + 2 * _EXIT_PATIENCE
    for client in list(_clients):
        for hold in client._held():
            # Whatever is left ends with its TTL.
            left = min(_EXIT_PATIENCE, until - now())
            if left > 0:
                hold.release(left)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
