"""HTTP to the nodes of a cluster: connections, TLS, and which node to ask next.

A connection is closed as soon as anything about it is doubtful, in the middle of an answer too:
for the service a connection that closes means that nobody waits for the answer any more.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import select
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from .clock import now

NODE_PATIENCE = 3.0
"""How long a node that lives may take for an answer beyond what it was asked to wait, in seconds."""
SILENCE = 0.12
"""How long a node may be silent, in seconds, before it is asked whether it lives."""
PROBE = 0.15
"""How long it may take to say so, and how long a connection may take to be made."""
WATCH_SILENCE = 1.0
"""As ``SILENCE``, for a node that tells of changes."""
SUSPICION = 2.0
"""For so long a node that was found dead is asked after the others."""

_IDLE_MAX = 8
_BODY_MAX = 64 << 20
_LINE_MAX = 1 << 20


@dataclass(frozen=True)
class Endpoint:
    """The API of one node."""

    url: str
    secure: bool
    host: str
    port: int
    path: str

    @staticmethod
    def parse(url: str) -> Endpoint:
        """Reads a URL like ``https://10.0.0.1:7001``."""
        parts = urllib.parse.urlsplit(url.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"endpoint {url!r} is not a URL like http://10.0.0.1:7001")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(f"endpoint {url!r} must be scheme, host and port only")
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        return Endpoint(
            url.strip().rstrip("/"), secure, parts.hostname, port, parts.path.rstrip("/")
        )


def endpoints_of(given: str | Sequence[str] | None) -> list[Endpoint]:
    """The endpoints that a caller gave, or those of ``CONCLAVE_ENDPOINTS``."""
    if given is None:
        given = os.environ.get("CONCLAVE_ENDPOINTS", "")
    if isinstance(given, str):
        given = given.split(",")
    found = [Endpoint.parse(url) for url in given if url.strip()]
    if not found:
        raise ValueError("no endpoints: give URLs of nodes, or set CONCLAVE_ENDPOINTS")
    return found


class Tls:
    """Whom to believe and who we are. Files that are renewed on disk are taken up."""

    def __init__(self, ca: str | None, cert: str | None, key: str | None) -> None:
        if (cert is None) != (key is None):
            raise ValueError("a client certificate needs both cert and key")
        self._files = (ca, cert, key)
        self._lock = threading.Lock()
        self._seen: tuple[Any, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """The settings for a new connection."""
        with self._lock:
            stamps = tuple(None if file is None else _stamp(file) for file in self._files)
            if self._context is None or stamps != self._seen:
                try:
                    self._context = self._load()
                    self._seen = stamps
                except (OSError, ssl.SSLError):
                    # A file that is just being written: the old one is still good.
                    if self._context is None:
                        raise
            return self._context

    def _load(self) -> ssl.SSLContext:
        ca, cert, key = self._files
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if cert is not None:
            context.load_cert_chain(cert, key)
        return context


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


class _Reader(io.RawIOBase):
    """Reads from a socket until a moment, and asks now and then whether to go on."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        connection = self._connection
        while True:
            left = connection.until - now()
            if left <= 0:
                raise TimeoutError("the node did not answer in time")
            connection.socket.settimeout(min(left, connection.pace))
            try:
                return connection.socket.recv_into(buffer)
            except socket.timeout:
                if connection.idle is not None:
                    connection.idle()


class _Wire:
    """What http.client takes for a socket. Closing it leaves the connection open."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def sendall(self, data: bytes) -> None:
        connection = self._connection
        connection.socket.settimeout(max(0.001, connection.until - now()))
        connection.socket.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._connection))

    def close(self) -> None:
        """The connection is closed by its owner."""


class Connection:
    """One connection to a node."""

    def __init__(self, endpoint: Endpoint, tls: Tls | None, until: float) -> None:
        self.endpoint = endpoint
        self.until = until
        self.pace = NODE_PATIENCE
        self.idle: Callable[[], None] | None = None
        wait = max(0.001, until - now())
        plain = socket.create_connection((endpoint.host, endpoint.port), timeout=wait)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _watch_for_silence(plain)
            self.socket: socket.socket = plain
            if endpoint.secure:
                context = (tls or Tls(None, None, None)).context()
                self.socket = context.wrap_socket(plain, server_hostname=endpoint.host)
        except BaseException:
            plain.close()
            raise

    def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes | None
    ) -> http.client.HTTPResponse:
        """Sends a request and reads the head of its answer."""
        talk = http.client.HTTPConnection(self.endpoint.host, self.endpoint.port)
        talk.sock = _Wire(self)
        talk.request(method, self.endpoint.path + path, body, headers)
        return talk.getresponse()

    def is_stale(self) -> bool:
        """Whether the other side has closed it, or said something that nobody asked for."""
        try:
            return bool(select.select([self.socket], [], [], 0)[0])
        except (OSError, ValueError):
            return True

    def close(self) -> None:
        """Ends it at once, also for whoever is reading from it or has inherited it."""
        with contextlib.suppress(OSError, ValueError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.drop()

    def drop(self) -> None:
        """Forgets it without a word to the other side."""
        with contextlib.suppress(OSError):
            self.socket.close()


def _watch_for_silence(plain: socket.socket) -> None:
    """Lets the system find out when the other machine is gone."""
    with contextlib.suppress(OSError):
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class _Pulse:
    """What is known about the life of one node, for all threads."""

    def __init__(self) -> None:
        self.probing = threading.Lock()
        self.heard = float("-inf")
        self.failed = float("-inf")


@dataclass(frozen=True)
class Answer:
    """What a node answered."""

    endpoint: Endpoint
    sent: float
    """When the request was sent, on the steady clock; not later than that."""
    status: int
    body: Any


class Transport:
    """Connections to the nodes, used again while they are good."""

    def __init__(self, endpoints: Sequence[Endpoint], tls: Tls | None, token: str | None) -> None:
        self.endpoints = list(endpoints)
        self._tls = tls
        self._token = token
        self.patience = NODE_PATIENCE
        self._pulses = {endpoint: _Pulse() for endpoint in self.endpoints}
        self._mutex = threading.Lock()
        self._first = 0
        self._idle: dict[Endpoint, list[Connection]] = {}
        self._busy: set[Connection] = set()

    def order(self) -> list[Endpoint]:
        """The endpoints, beginning with the one that answered last; those that were found dead
        a moment ago come last."""
        first, since = self._first, now() - SUSPICION
        order = self.endpoints[first:] + self.endpoints[:first]
        return sorted(order, key=lambda endpoint: self._pulses[endpoint].failed > since)

    def prefer(self, endpoint: Endpoint) -> None:
        """This one answered."""
        self._first = self.endpoints.index(endpoint)
        self._pulses[endpoint].failed = float("-inf")

    def suspect(self, endpoint: Endpoint) -> None:
        """This one could not be reached."""
        self._pulses[endpoint].failed = now()

    def _haste(self, turn: int) -> float:
        """By how much to stretch the time in which a node must show that it lives.

        Where nobody else can be asked there is no use in haste. If nobody answers, all of them
        may just be slow: each turn gives them twice the time.
        """
        longest = self.patience / PROBE
        return longest if len(self.endpoints) == 1 else min(longest, 2.0**turn)

    def ask(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        until: float,
        turn: int = 0,
    ) -> Answer:
        """Asks one node. If it is silent it is asked whether it lives, and left if it does not
        say so: the later the turn, the more time it has."""
        again = True
        haste = self._haste(turn)
        while True:
            connection, used = self._take(endpoint, min(until, now() + PROBE * haste))
            whole = False
            try:
                connection.until = until
                connection.pace = SILENCE * haste
                connection.idle = lambda: self._lives(endpoint, haste)
                sent = now()
                response = connection.ask(method, path, self._headers(body), _encoded(body))
                text = response.read(_BODY_MAX)
                self._pulses[endpoint].heard = now()
                whole = response.isclosed() and not response.will_close
                return Answer(endpoint, sent, response.status, _decoded(text))
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                # The node closed a connection that we kept; every request may be repeated.
                if not (used and again):
                    raise
                again = False
            finally:
                self._give(connection, whole)

    def lines(
        self, endpoint: Endpoint, path: str, silence: float, until: float | None = None
    ) -> Iterator[str]:
        """The lines of an answer that does not end; an error as the ``Answer`` that it is."""
        haste = self._haste(0)
        connect = now() + PROBE * haste
        connection, _ = self._take(endpoint, connect if until is None else min(connect, until))
        try:
            connection.idle = lambda: self._lives(endpoint, haste)
            connection.pace = min(silence, WATCH_SILENCE)
            connection.until = now() + silence
            headers = self._headers(None)
            headers["Accept"] = "text/event-stream"
            sent = now()
            response = connection.ask("GET", path, headers, None)
            if response.status != 200:
                text = response.read(_BODY_MAX)
                raise Refused(Answer(endpoint, sent, response.status, _decoded(text)))
            while True:
                connection.until = now() + silence
                line = response.readline(_LINE_MAX)
                if not line:
                    return
                yield line.decode("utf-8", "replace").rstrip("\r\n")
        finally:
            self._give(connection, False)

    def _lives(self, endpoint: Endpoint, haste: float) -> None:
        """Fails unless the node answers on another connection, or has just done so. One thread
        asks for all."""
        pulse = self._pulses[endpoint]
        begun = now()
        with pulse.probing:
            if pulse.heard > begun - SILENCE:
                return
            if pulse.failed > begun:
                raise TimeoutError("the node stands still")
            try:
                self._probe(endpoint, now() + PROBE * haste)
            except (OSError, http.client.HTTPException):
                pulse.failed = now()
                raise
            pulse.heard = now()

    def _probe(self, endpoint: Endpoint, until: float) -> None:
        again = True
        while True:
            connection, used = self._take(endpoint, until)
            whole = False
            try:
                connection.until = until
                connection.pace = PROBE
                connection.idle = None
                response = connection.ask("GET", "/healthz", {}, None)
                response.read(_BODY_MAX)
                whole = response.isclosed() and not response.will_close
                return
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                if not (used and again):
                    raise
                again = False
            finally:
                self._give(connection, whole)

    def _headers(self, body: dict[str, Any] | None) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _take(self, endpoint: Endpoint, until: float) -> tuple[Connection, bool]:
        while True:
            with self._mutex:
                kept = self._idle.get(endpoint)
                connection = kept.pop() if kept else None
                if connection is not None:
                    self._busy.add(connection)
            if connection is None:
                connection = Connection(endpoint, self._tls, until)
                with self._mutex:
                    self._busy.add(connection)
                return connection, False
            if not connection.is_stale():
                return connection, True
            self._give(connection, False)

    def _give(self, connection: Connection, good: bool) -> None:
        with self._mutex:
            self._busy.discard(connection)
            kept = self._idle.setdefault(connection.endpoint, [])
            if good and len(kept) < _IDLE_MAX:
                kept.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Closes the connections that nobody uses."""
        with self._mutex:
            idle = [one for kept in self._idle.values() for one in kept]
            self._idle = {}
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        # Whoever is collected has no users, so nobody else takes or gives a connection.
        for kept in getattr(self, "_idle", {}).values():
            for connection in kept:
                connection.drop()

    def forked(self) -> None:
        """In a child process: forgets the parent's connections without disturbing them."""
        connections = [one for kept in self._idle.values() for one in kept]
        connections.extend(self._busy)
        for connection in connections:
            connection.drop()
        self._mutex = threading.Lock()
        self._pulses = {endpoint: _Pulse() for endpoint in self.endpoints}
        self._idle = {}
        self._busy = set()


class Refused(Exception):
    """A stream that was answered with an error."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def _encoded(body: dict[str, Any] | None) -> bytes | None:
    return None if body is None else json.dumps(body).encode("utf-8")


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
