"""Locks of a real cluster that speaks TLS and wants certificates."""

from __future__ import annotations

import subprocess
import unittest

from conclave_lock import BadRequest, Client, NoQuorum
from tests.cluster import Cluster, binary, renewed


class Tls(unittest.TestCase):
    cluster: Cluster

    @classmethod
    def setUpClass(cls) -> None:
        program = binary()
        if program and b"--tls" not in subprocess.check_output([program, "up", "--help"]):
            raise unittest.SkipTest("this program does not speak TLS")
        cls.cluster = Cluster("--nodes", "3", "--tls")
        cls.addClassCleanup(cls.cluster.stop)

    def test_a_lock_is_taken_kept_and_released(self) -> None:
        client = Client(self.cluster.endpoints, **self.cluster.more["tls"])
        self.addCleanup(client.close)
        with client.lock("secret", wait=20) as lock:
            renewed(lock)
            self.assertIsNone(client.try_lock("secret"))
            self.assertEqual(len(client.show("secret").holders), 1)
            watch = client.watch("secret")
            self.assertTrue(next(one for one in watch if one.holders))
            watch.close()

    def test_whoever_is_not_believed_gets_no_request(self) -> None:
        client = Client(self.cluster.endpoints, timeout=0.1)
        with self.assertRaisesRegex(NoQuorum, "certificate"):
            client.status()

    def test_plain_http_is_told_what_to_do(self) -> None:
        plain = [url.replace("https://", "http://") for url in self.cluster.endpoints]
        client = Client(plain, timeout=0.1)
        with self.assertRaisesRegex(BadRequest, "https"):
            client.status()


if __name__ == "__main__":
    unittest.main()
