"""Locks of a real cluster in which nothing fails."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
import unittest
import warnings
from typing import Any

from conclave_lock import BadRequest, Client, Lost, NoQuorum, NotAcquired, now
from tests.cluster import Cluster, until

cluster: Cluster


def setUpModule() -> None:
    global cluster  # noqa: PLW0603
    cluster = Cluster("--nodes", "3")


def tearDownModule() -> None:
    cluster.stop()


def script(text: str, **more: Any) -> subprocess.Popen[str]:
    """Runs Python with a client at hand."""
    head = f"from conclave_lock import *\nclient = Client({cluster.endpoints!r})\n"
    command = [sys.executable, "-c", head + text]
    folder = pathlib.Path(__file__).resolve().parents[1]
    return subprocess.Popen(command, text=True, cwd=folder, **more)


class Locks(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Client(cluster.endpoints)
        self.addCleanup(self.client.close)

    def free(self, name: str) -> bool:
        state = self.client.show(name)
        return not state.holders and not state.waiters

    def test_a_lock_excludes_and_its_token_grows(self) -> None:
        with self.client.lock("a/b", note="hello", owner="tester") as lock:
            self.assertTrue(lock.held)
            self.assertTrue(lock.group.startswith("own:"))
            self.assertLessEqual(lock.deadline, now() + 10)
            self.assertGreater(lock.remaining, 5)
            with self.assertRaises(NotAcquired) as caught:
                self.client.lock("a/b", wait=0)
            self.assertEqual(caught.exception.code, "not_acquired")
            self.assertEqual(caught.exception.status, 409)
            self.assertIsNone(self.client.try_lock("a/b"))
            state = until("the holder has told its note", lambda: self.noted("a/b"))
            self.assertEqual(state.holders[0].note, b"hello")
            self.assertEqual(state.holders[0].owner, "tester")
            self.assertEqual(state.holders[0].token, lock.token)
            self.assertEqual([one.name for one in self.client.locks("a/")], [b"a/b"])
            self.assertEqual(self.client.locks("nothing/"), [])
        self.assertFalse(lock.held)
        self.assertFalse(lock.lost.is_set())
        with self.assertRaises(Lost):
            lock.check()
        with self.client.lock("a/b") as again:
            self.assertGreater(again.token, lock.token)

    def noted(self, name: str) -> Any:
        state = self.client.show(name)
        return state if state.holders and state.holders[0].note else None

    def test_a_release_may_be_repeated(self) -> None:
        lock = self.client.lock("twice")
        self.assertTrue(lock.release())
        self.assertFalse(lock.release())
        self.client.lock("twice", wait=5).release()

    def test_readers_and_groups_share(self) -> None:
        with self.client.lock("s", mode="shared"), self.client.lock("s", mode="shared"):
            self.assertIsNone(self.client.try_lock("s"))
        with self.client.lock("g", group="red") as one, self.client.lock("g", group="red") as two:
            self.assertEqual(one.group, two.group)
            self.assertIsNone(self.client.try_lock("g", group="blue"))
            self.assertIsNone(self.client.try_lock("g", mode="shared"))

    def test_names_are_bytes(self) -> None:
        for name in (b"\xff/\x00", "ä b?c#d%2F", "..", "keepalive", "a//b/"):
            with self.client.lock(name) as lock:
                raw = name if isinstance(name, bytes) else name.encode()
                self.assertEqual(lock.name, raw)
                self.assertEqual(len(self.client.show(name).holders), 1, name)
                self.assertIn(raw, [one.name for one in self.client.locks()])
        with self.client.lock("bytes", group=b"\xff", note=b"\xfe") as lock:
            state = until("its note is told", lambda: self.noted("bytes"))
            self.assertEqual(state.holders[0].note, b"\xfe")

    def test_a_lock_is_kept_longer_than_its_ttl(self) -> None:
        with self.client.lock("kept", ttl=3) as lock:
            first = lock.deadline
            until("the first TTL is over", lambda: now() > first + 0.2)
            self.assertTrue(lock.held)
            self.assertGreater(lock.deadline, first)
            self.assertIsNone(self.client.try_lock("kept"))

    def test_a_waiter_is_served_when_the_holder_leaves(self) -> None:
        holder = self.client.lock("wait")
        tokens = []
        thread = threading.Thread(target=lambda: tokens.append(self.client.lock("wait").token))
        thread.start()
        until("it waits", lambda: self.client.show("wait").waiters)
        holder.release()
        thread.join(30)
        self.assertGreater(tokens[0], holder.token)

    def test_the_time_to_wait_ends(self) -> None:
        with self.client.lock("short"), self.assertRaises(NotAcquired) as caught:
            self.client.lock("short", wait=0.2)
        self.assertEqual(len(caught.exception.holders), 1)

    def test_an_interrupt_cancels_the_wait(self) -> None:
        # Whoever starts the tests may have told them to ignore interrupts.
        text = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        text += "client.lock('int')"
        with self.client.lock("int"):
            waiter = script(text, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.addCleanup(waiter.kill)
            until("it waits", lambda: self.client.show("int").waiters)
            waiter.send_signal(signal.SIGINT)
            errors = waiter.communicate(timeout=30)[1]
            self.assertIn("KeyboardInterrupt", errors)
            until("its request is gone", lambda: not self.client.show("int").waiters)

    def test_the_end_of_the_process_releases(self) -> None:
        text = "lock = client.lock('exit', ttl=50)\nprint(lock.token)"
        done = script(text, stdout=subprocess.PIPE)
        out = done.communicate(timeout=30)[0]
        with self.client.lock("exit", wait=20) as lock:
            self.assertGreater(lock.token, int(out))

    def test_an_exception_in_the_block_releases_and_goes_on(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "mine"), self.client.lock("raise", ttl=50):
            raise RuntimeError("mine")
        self.client.lock("raise", wait=20).release()

    def test_a_dropped_lock_is_released(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self.client.lock("dropped", ttl=50)
            gc.collect()
            self.client.lock("dropped", wait=20).release()

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_a_child_process_does_not_hold_its_parents_lock(self) -> None:
        with self.client.lock("fork", ttl=50) as lock:
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    told = [lock.held, lock.lost.is_set(), lock.release()]
                    # The client itself works in the child.
                    with self.client.lock("fork/child", wait=20):
                        told.append(True)
                    told.append(self.client.try_lock("fork") is None)
                    os.write(write, repr(told).encode())
                finally:
                    os._exit(0)
            os.close(write)
            answer = os.read(read, 1000)
            os.close(read)
            os.waitpid(child, 0)
            self.assertEqual(answer, b"[False, True, False, True, True]")
            self.assertTrue(lock.held)
            lock.check()
            self.assertEqual(len(self.client.show("fork").holders), 1)

    def test_mistakes_are_told_by_name(self) -> None:
        with self.assertRaises(BadRequest) as caught:
            self.client.lock("x", ttl=100_000)
        self.assertEqual(caught.exception.code, "ttl_too_long")
        with self.assertRaises(BadRequest) as caught:
            self.client.lock("")
        self.assertEqual(caught.exception.code, "bad_name")
        for wrong in ({"mode": "own"}, {"mode": "shared", "group": "g"}, {"ttl": 0}, {"wait": -1}):
            with self.assertRaises(ValueError):
                self.client.lock("x", **wrong)

    def test_an_election_tells_its_leader(self) -> None:
        self.assertIsNone(self.client.leader("boss"))
        with self.client.elect("boss", "host-1:80") as first:
            self.assertEqual(first.value, b"host-1:80")
            until("it is told", lambda: self.noted("boss"))
            leader = self.client.leader("boss")
            assert leader is not None
            self.assertEqual((leader.note, leader.token), (b"host-1:80", first.token))
            with self.assertRaises(NotAcquired):
                self.client.elect("boss", "host-2:80", wait=0)
        with self.client.elect("boss", "host-2:80", wait=20) as second:
            self.assertGreater(second.token, first.token)

    def test_a_semaphore_lets_so_many_in(self) -> None:
        cluster.needs("slots")
        held = [self.client.lock("sem", slots=2, wait=20) for _ in range(2)]
        self.assertEqual({lock.slot for lock in held}, {1, 2})
        self.assertIsNone(self.client.try_lock("sem", slots=2))
        held[0].release()
        with self.client.lock("sem", slots=2, wait=20) as lock:
            self.assertEqual(lock.slot, held[0].slot)
        held[1].release()

    def test_a_watch_tells_what_changes(self) -> None:
        cluster.needs("/v1/watch")
        watch = self.client.watch("seen")
        self.assertEqual(next(watch).holders, [])
        with self.client.lock("seen", note="inside") as lock:
            state = next(one for one in watch if one.holders)
            self.assertEqual(state.holders[0].token, lock.token)
        self.assertTrue(next(one for one in watch if not one.holders))
        watch.close()
        with self.client.lock("seen/1", note="x"):
            self.assertEqual(next(self.client.watch_prefix("seen/")).name, b"seen/1")

    def test_observers_see_leaders_in_order(self) -> None:
        cluster.needs("/v1/watch")
        leaders = self.client.observe("chief")
        self.assertIsNone(next(leaders))
        for value in (b"one", b"two"):
            with self.client.elect("chief", value, wait=20):
                leader = next(one for one in leaders if one is not None and one.note)
                self.assertEqual(leader.note, value)
        leaders.close()

    def test_status_names_the_nodes(self) -> None:
        self.assertEqual(len(self.client.status()["nodes"]), 3)

    def test_nobody_there(self) -> None:
        lonely = Client("http://127.0.0.1:1", timeout=0.2)
        with self.assertRaises(NoQuorum) as caught:
            lonely.status()
        self.assertEqual(caught.exception.code, "unreachable")
        with self.assertRaises(NoQuorum):
            lonely.lock("x", wait=0)


if __name__ == "__main__":
    unittest.main()
