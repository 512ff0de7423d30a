"""What can go wrong, one class per thing that a caller would do differently about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ConclaveError(Exception):
    """Every error of this package.

    ``code`` is one word for programs, as in the service's answers; ``status`` the HTTP status,
    or 0 if the error is not an answer of a node; ``endpoint`` the node that said it.
    """

    def __init__(
        self,
        message: str,
        code: str = "error",
        status: int = 0,
        endpoint: str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.endpoint = endpoint
        self.body: dict[str, Any] = dict(body or {})


class NotAcquired(ConclaveError):
    """Somebody else is inside, and the time to wait is over."""

    @property
    def holders(self) -> list[dict[str, Any]]:
        """Who was inside, as the node saw it."""
        holders = self.body.get("holders")
        return list(holders) if isinstance(holders, list) else []

    @property
    def position(self) -> int:
        """How many requests were ahead."""
        position = self.body.get("position")
        return position if isinstance(position, int) else 0


class Lost(ConclaveError):
    """The lock is not held any more: stop using what it protects."""


class NoQuorum(ConclaveError):
    """Too few nodes can be reached. Nothing is known about the lock; ask again later."""


class Unauthenticated(ConclaveError):
    """The cluster wants to know who asks: give a bearer token or a client certificate."""


class NotPermitted(ConclaveError):
    """The cluster knows who asks, and that it may not do this."""


class BadRequest(ConclaveError):
    """The request itself is wrong, whoever asks and whenever."""


class LimitReached(ConclaveError):
    """A limit of the service is reached; ``code`` says which."""


_BY_STATUS: dict[int, type[ConclaveError]] = {
    401: Unauthenticated,
    403: NotPermitted,
    409: NotAcquired,
    410: Lost,
    429: LimitReached,
    503: NoQuorum,
}

_BY_CODE: dict[str, type[ConclaveError]] = {
    "unauthenticated": Unauthenticated,
    "not_permitted": NotPermitted,
    "not_acquired": NotAcquired,
    "lost": Lost,
    "revoked": Lost,
    "no_quorum": NoQuorum,
}


def of_answer(status: int, body: Any, endpoint: str) -> ConclaveError:
    """The error that an answer of a node stands for."""
    told = body.get("error") if isinstance(body, dict) else None
    told = told if isinstance(told, dict) else {}
    code = str(told.get("code") or f"http_{status}")
    message = str(told.get("message") or f"the node answered with status {status}")
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = BadRequest if 400 <= status < 500 else NoQuorum
    return kind(message, code, status, endpoint, body if isinstance(body, dict) else None)
