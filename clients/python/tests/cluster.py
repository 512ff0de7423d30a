"""A cluster of real processes that is gone after the tests."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request
from typing import Any, Callable

from conclave_lock import Lock, now

PATIENCE = 60.0
"""Long enough for anything that does happen, on any machine."""


def binary() -> str | None:
    """The program under test: CONCLAVE_BIN, or what was built in this tree."""
    given = os.environ.get("CONCLAVE_BIN")
    if given:
        return given
    root = pathlib.Path(__file__).resolve().parents[3]
    built = [root / "target" / kind / "conclave" for kind in ("release", "debug")]
    return next((str(path) for path in built if path.exists()), None)


def until(what: str, holds: Callable[[], Any]) -> Any:
    """Waits until something holds, and gives it."""
    begun = time.monotonic()
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() - begun > PATIENCE:
            raise AssertionError(f"never: {what}")
        time.sleep(0.02)


def renewed(lock: Lock) -> None:
    """Lets a lock be renewed now, and waits until it is."""
    before = lock.deadline
    lock._hold.next_renewal = now()
    until("the lock is renewed", lambda: lock.deadline > before)


class Cluster:
    """A running ``conclave up``."""

    def __init__(self, *flags: str) -> None:
        program = binary()
        if program is None:
            raise unittest.SkipTest("no conclave program: build it, or set CONCLAVE_BIN")
        self.program = program
        self.home = tempfile.mkdtemp(prefix="conclave-python-")
        self.env = dict(os.environ, XDG_RUNTIME_DIR=self.home)
        self.env.pop("CONCLAVE_ENDPOINTS", None)
        # Not in the data directory of the cluster, which must be its own.
        command = [program, "up", *flags, "--json"]
        self.up = subprocess.Popen(command, stdout=subprocess.PIPE, env=self.env, text=True)
        assert self.up.stdout is not None
        line = self.up.stdout.readline()
        if not line:
            self.stop()
            raise AssertionError(f"the cluster did not start: {command}")
        self.nodes = json.loads(line)["nodes"]
        self.more = json.loads(self.up.stdout.readline())
        self.endpoints = [node["api"] for node in self.nodes]

    def needs(self, word: str) -> None:
        """Skips a test of something that an older program does not have."""
        with urllib.request.urlopen(self.endpoints[0] + "/v1/openapi.json") as answer:
            if f'"{word}"' not in answer.read().decode():
                raise unittest.SkipTest(f"this program does not know {word}")

    def signal(self, place: int, what: signal.Signals) -> None:
        """Sends a signal to one node."""
        os.kill(self.nodes[place]["pid"], what)

    def stop(self) -> None:
        """Ends all of it, nodes that stand still too."""
        for node in getattr(self, "nodes", []):
            with contextlib.suppress(OSError):
                os.kill(node["pid"], signal.SIGCONT)
        self.up.terminate()
        try:
            self.up.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.up.kill()
            self.up.wait()
        if self.up.stdout is not None:
            self.up.stdout.close()
        shutil.rmtree(self.home, ignore_errors=True)
