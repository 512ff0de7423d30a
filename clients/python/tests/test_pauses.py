"""A gateway that dies or stands still costs its clients a moment, and others no TTL.

No test measures time: nodes may be silent for an hour before they are given up for it, and locks
last for minutes, so that only the way under test leads on.
"""

from __future__ import annotations

import random
import signal
import threading
import time
import unittest

from conclave_lock import Client, Lock
from tests.cluster import Cluster, until

HOUR = 3600.0
TTL = 300.0
"""Longer than any test waits: whoever gets the lock got it before the TTL was over."""


class Pauses(unittest.TestCase):
    def setUp(self) -> None:
        self.cluster = Cluster("--nodes", "3", "--processes", "--ttl-max", "10m")
        self.addCleanup(self.cluster.stop)

    def client(self) -> Client:
        """A client that asks the first node first, and gives no node up for its silence."""
        client = Client(self.cluster.endpoints)
        client._transport.patience = HOUR
        self.addCleanup(client.close)
        return client

    def in_background(self, client: Client, name: str) -> tuple[threading.Thread, list[Lock]]:
        got: list[Lock] = []
        thread = threading.Thread(target=lambda: got.append(client.lock(name, ttl=TTL)))
        thread.daemon = True
        thread.start()
        return thread, got

    def test_what_a_node_that_stands_still_was_asked_is_asked_elsewhere(self) -> None:
        client = self.client()
        first = client.lock("x", ttl=TTL)
        self.cluster.signal(0, signal.SIGSTOP)
        self.assertTrue(first.release(HOUR))
        client._transport.prefer(client._transport.endpoints[0])
        with client.lock("x", ttl=TTL) as second:
            self.assertGreater(second.token, first.token)
            client._transport.prefer(client._transport.endpoints[0])
            before = second.deadline
            second._hold.renew_once()
            self.assertGreater(second.deadline, before)
        self.assertNotEqual(client._transport.order()[0].url, self.cluster.endpoints[0])

    def test_a_wait_goes_on_when_its_node_stands_still_or_is_stopped(self) -> None:
        for place, what in enumerate([signal.SIGSTOP, signal.SIGTERM]):
            name = f"x{place}"
            order = [self.cluster.endpoints[place], self.cluster.endpoints[2]]
            holder, waiter = Client(order[1:]), Client(order)
            waiter._transport.patience = HOUR
            self.addCleanup(holder.close)
            self.addCleanup(waiter.close)
            held = holder.lock(name, ttl=TTL)
            thread, got = self.in_background(waiter, name)
            until("it waits", lambda held=held: holder.show(held.name).waiters)
            self.cluster.signal(place, what)
            busy = waiter._transport._busy
            until(
                "it asks another",
                lambda busy=busy, order=order: any(
                    one.endpoint.url == order[1] for one in list(busy)
                ),
            )
            held.release()
            thread.join(60)
            self.assertGreater(got[0].token, held.token)
            self.assertTrue(got[0].release())
            if what == signal.SIGSTOP:
                self.cluster.signal(place, signal.SIGCONT)

    def test_a_gateway_that_stands_still_at_any_moment_costs_rivals_no_ttl(self) -> None:
        rival = Client(self.cluster.endpoints[1:])
        self.addCleanup(rival.close)
        chance = random.Random(7)
        for number in range(12):
            name = f"y{number}"
            client = self.client()
            thread, got = self.in_background(client, name)
            # Anywhere between the question and the answer.
            time.sleep(chance.uniform(0, 0.006))
            self.cluster.signal(0, signal.SIGSTOP)
            thread.join(60)
            self.assertTrue(got, "the same id goes on at another node")
            self.assertTrue(got[0].release())
            with rival.lock(name, ttl=TTL, wait=60) as lock:
                self.assertGreater(lock.token, got[0].token)
            self.cluster.signal(0, signal.SIGCONT)


if __name__ == "__main__":
    unittest.main()
