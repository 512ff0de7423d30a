"""Locks of a real cluster whose nodes are killed and stopped."""

from __future__ import annotations

import signal
import threading
import unittest

from conclave_lock import Client, Lost, NoQuorum, now
from tests.cluster import Cluster, renewed, until


class Faults(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = Cluster("--nodes", "3", "--processes", "--ttl-max", "5s")
        self.addCleanup(self.cluster.stop)
        self.client = Client(self.cluster.endpoints)
        self.addCleanup(self.client.close)
        self.client._transport.patience = 0.5

    def asked(self) -> int:
        """The node that the client asks first."""
        return self.cluster.endpoints.index(self.client._transport.order()[0].url)

    def test_a_lock_outlives_the_node_it_was_taken_through(self) -> None:
        with self.client.lock("x", ttl=5) as lock:
            self.cluster.signal(self.asked(), signal.SIGKILL)
            for _ in range(3):
                renewed(lock)
            self.assertIsNone(self.client.try_lock("x", ttl=5))

    def test_a_wait_goes_on_at_another_node_when_its_node_stands_still(self) -> None:
        holder = self.client.lock("x", ttl=5)
        waiter = Client(self.cluster.endpoints)
        self.addCleanup(waiter.close)
        waiter._transport.patience = 0.3
        got = []
        thread = threading.Thread(target=lambda: got.append(waiter.lock("x", ttl=5)))
        thread.start()
        until("it waits", lambda: self.client.show("x").waiters)
        self.cluster.signal(0, signal.SIGSTOP)
        stopped = self.cluster.endpoints[0]
        busy = waiter._transport._busy
        until("it asks another", lambda: any(one.endpoint.url != stopped for one in list(busy)))
        holder.release()
        thread.join(60)
        self.assertGreater(got[0].token, holder.token)
        got[0].release()

    def test_a_lock_that_cannot_be_renewed_is_lost_before_its_deadline(self) -> None:
        told: list[float] = []
        lock = self.client.lock("x", ttl=2, on_lost=lambda lost: told.append(now()))
        with self.assertRaises(Lost), lock:
            for place in range(3):
                self.cluster.signal(place, signal.SIGSTOP)
            self.assertTrue(lock.lost.wait(60))
            self.assertFalse(lock.held)
            with self.assertRaises(Lost):
                lock.check()
        until("the callback was called", lambda: told)

    def test_holders_exclude_each_other_while_a_node_dies(self) -> None:
        inside: list[int] = []
        tokens: list[int] = []
        wrong: list[str] = []
        enough = threading.Event()

        def fight(client: Client) -> None:
            while not enough.is_set():
                with client.lock("hot", ttl=5) as lock:
                    inside.append(lock.token)
                    if len(inside) > 1 or (tokens and lock.token <= tokens[-1]):
                        wrong.append(f"{inside} after {tokens[-1:]}")
                    tokens.append(lock.token)
                    inside.pop()

        clients = [Client(self.cluster.endpoints) for _ in range(3)]
        for client in clients:
            client._transport.patience = 0.5
            self.addCleanup(client.close)
        threads = [threading.Thread(target=fight, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        until("some were inside", lambda: len(tokens) > 30)
        self.cluster.signal(self.asked(), signal.SIGKILL)
        seen = len(tokens)
        until("others go on inside", lambda: len(tokens) > seen + 30)
        enough.set()
        for thread in threads:
            thread.join(60)
        self.assertEqual(wrong, [])

    def test_two_dead_nodes_of_three_are_no_quorum(self) -> None:
        for place in (0, 1):
            self.cluster.signal(place, signal.SIGKILL)
        quick = Client(self.cluster.endpoints, timeout=1)
        self.addCleanup(quick.close)
        with self.assertRaises(NoQuorum):
            quick.lock("x", ttl=2, wait=0)
        with self.assertRaises(NoQuorum):
            quick.lock("x", ttl=2, wait=1)


if __name__ == "__main__":
    unittest.main()
