"""Locks of a real cluster that wants to know who asks, and lets nobody do everything."""

from __future__ import annotations

import json
import pathlib
import subprocess
import tempfile
import unittest
from typing import Any

from conclave_lock import Client, Lost, NotPermitted, Unauthenticated
from tests.cluster import Cluster, binary, renewed

RULES = """
[[permission]]
who = "ci"
prefix = "ci/"
may = ["acquire", "read"]

[[permission]]
who = "ops"
prefix = ""
may = ["administer"]
"""


class Access(unittest.TestCase):
    cluster: Cluster
    tokens: dict[str, str]

    @classmethod
    def setUpClass(cls) -> None:
        program = binary()
        if program and b"--access" not in subprocess.check_output([program, "up", "--help"]):
            raise unittest.SkipTest("this program knows no access file")
        if program is None:
            raise unittest.SkipTest("no conclave program: build it, or set CONCLAVE_BIN")
        cls.tokens = {}
        rules = RULES
        for name in ("ci", "ops"):
            command = [program, "token", "new", "--principal", name, "--json"]
            made = json.loads(subprocess.check_output(command))
            cls.tokens[name] = made["token"]
            rules += "\n" + made["access_toml"] + "\n"
        folder = tempfile.TemporaryDirectory(prefix="conclave-python-")
        cls.addClassCleanup(folder.cleanup)
        file = pathlib.Path(folder.name) / "access.toml"
        file.write_text(rules)
        cls.cluster = Cluster("--nodes", "3", "--access", str(file))
        cls.addClassCleanup(cls.cluster.stop)

    def client(self, **more: Any) -> Client:
        client = Client(self.cluster.endpoints, ca=self.cluster.more["tls"]["ca"], timeout=5, **more)
        self.addCleanup(client.close)
        return client

    def test_whoever_shows_no_token_or_a_wrong_one_is_refused(self) -> None:
        for more in ({}, {"token": "wrong"}):
            with self.assertRaises(Unauthenticated) as caught:
                self.client(**more).lock("ci/x", wait=0)
            self.assertEqual(caught.exception.status, 401)

    def test_a_token_opens_what_its_owner_may(self) -> None:
        client = self.client(token=self.tokens["ci"])
        with client.lock("ci/x", wait=20) as lock:
            renewed(lock)
            self.assertEqual(len(client.show("ci/x").holders), 1)
        with self.assertRaises(NotPermitted) as caught:
            client.lock("other", wait=0)
        self.assertEqual(caught.exception.code, "not_permitted")
        with self.assertRaises(NotPermitted):
            self.client(token=self.tokens["ops"]).lock("ci/x", wait=0)

    def test_a_revoked_holder_is_told(self) -> None:
        ops = self.client(token=self.tokens["ops"])
        lock = self.client(token=self.tokens["ci"]).lock("ci/gone", ttl=60, wait=20)
        session = ops.show("ci/gone").holders[0].session
        ops._reach("POST", f"/v1/sessions/{session}/revoke", lambda: {})
        lock._hold.next_renewal = 0.0
        self.assertTrue(lock.lost.wait(60))
        with self.assertRaises(Lost):
            lock.check()


if __name__ == "__main__":
    unittest.main()
