"""Locks as the cluster shows them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

Text = Union[str, bytes]


def to_json(text: Text) -> Any:
    """A name, group or note as JSON: a string, or base64 for bytes that are not UTF-8."""
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(text).decode("ascii")}


def to_bytes(told: Any) -> bytes:
    """The bytes behind the JSON of a name, group or note."""
    if isinstance(told, str):
        return told.encode("utf-8")
    if isinstance(told, Mapping) and isinstance(told.get("base64"), str):
        return base64.b64decode(told["base64"])
    return b""


def _text(told: Any) -> str:
    return to_bytes(told).decode("utf-8", "backslashreplace")


def _mode(told: Any) -> tuple[str, str | None]:
    if isinstance(told, Mapping) and "group" in told:
        return "group", _text(told["group"])
    return (told if isinstance(told, str) else "exclusive"), None


def _number(told: Any) -> int | None:
    return told if isinstance(told, int) and not isinstance(told, bool) else None


def _rows(told: Any) -> list[Mapping[str, Any]]:
    return [row for row in told if isinstance(row, Mapping)] if isinstance(told, list) else []


@dataclass(frozen=True)
class Holder:
    """Somebody who is inside a lock."""

    mode: str
    """``exclusive``, ``shared`` or ``group``."""
    group_name: str | None
    """The group that it asked for, if its mode is ``group``."""
    token: int | None
    """Its fencing token; absent until it has told one."""
    group: str
    """Who shares the token."""
    owner: str
    """Who it is, as it said itself."""
    note: bytes | None
    """What it wants others to read: in an election, the leader's value."""
    session: str
    """Its session, as ``conclave sessions`` shows it."""
    raw: dict[str, Any] = field(repr=False, compare=False)
    """Everything that the node told about it."""


@dataclass(frozen=True)
class Waiter:
    """Somebody who waits for a lock."""

    mode: str
    """``exclusive``, ``shared`` or ``group``."""
    group_name: str | None
    """The group that it asks for, if its mode is ``group``."""
    position: int
    """How many requests are ahead of it."""
    owner: str
    """Who it is, as it said itself."""
    session: str
    """Its session, as ``conclave sessions`` shows it."""
    raw: dict[str, Any] = field(repr=False, compare=False)
    """Everything that the node told about it."""

    @property
    def why(self) -> str | None:
        """Why it waits, in words, if the node tells."""
        why = self.raw.get("why")
        return why.get("text") if isinstance(why, Mapping) else None


@dataclass(frozen=True)
class LockState:
    """A lock as the nodes see it."""

    name: bytes
    """Its name."""
    holders: list[Holder]
    """Who is inside."""
    waiters: list[Waiter]
    """Who waits, in the order in which they will be served; a watch tells only how many."""
    waiting: int
    """How many requests wait."""
    partial: bool
    """Whether nodes that did not answer might add something."""
    raw: dict[str, Any] = field(repr=False, compare=False)
    """Everything that the node told."""

    @property
    def leader(self) -> Holder | None:
        """The holder with the largest token: in an election, who leads."""
        known = [holder for holder in self.holders if holder.token is not None]
        return max(known, key=lambda holder: holder.token or 0) if known else None


def holder(row: Mapping[str, Any]) -> Holder:
    """A holder from its JSON."""
    mode, group_name = _mode(row.get("mode"))
    note = row.get("note")
    return Holder(
        mode=mode,
        group_name=group_name,
        token=_number(row.get("token")),
        group=_text(row.get("group")),
        owner=_text(row.get("owner")),
        note=None if note is None else to_bytes(note),
        session=_text(row.get("session")),
        raw=dict(row),
    )


def waiter(row: Mapping[str, Any]) -> Waiter:
    """A waiter from its JSON."""
    mode, group_name = _mode(row.get("mode"))
    return Waiter(
        mode=mode,
        group_name=group_name,
        position=_number(row.get("position")) or 0,
        owner=_text(row.get("owner")),
        session=_text(row.get("session")),
        raw=dict(row),
    )


def lock_state(row: Mapping[str, Any], partial: bool = False) -> LockState:
    """A lock from its JSON."""
    waiters = [waiter(one) for one in _rows(row.get("waiters"))]
    waiting = _number(row.get("waiting"))
    return LockState(
        name=to_bytes(row.get("name")),
        holders=[holder(one) for one in _rows(row.get("holders"))],
        waiters=waiters,
        waiting=len(waiters) if waiting is None else waiting,
        partial=bool(row.get("partial", partial)),
        raw=dict(row),
    )
