"""The client against a node that is made up, to see what a real one seldom does."""

from __future__ import annotations

import http.server
import json
import threading
import time
import unittest
from typing import Any, Callable

from conclave_lock import (
    BadRequest,
    Client,
    LimitReached,
    Lost,
    NoQuorum,
    NotPermitted,
    Unauthenticated,
    now,
)
from conclave_lock.model import lock_state, to_bytes, to_json
from conclave_lock.transport import Endpoint
from tests.cluster import renewed, until

Reply = Callable[[Any, str, dict[str, Any]], None]


class Quiet(http.server.ThreadingHTTPServer):
    """A server that does not mind callers who hang up."""

    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        pass


class Fake:
    """A node that answers as it is told to."""

    def __init__(self, reply: Reply) -> None:
        self.seen: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size) or b"{}")
                fake.seen.append((self.path, body, dict(self.headers)))
                reply(self, self.path, body)

            do_GET = do_POST = answer

            def log_message(self, *_: Any) -> None:
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def say(handler: Any, status: int, body: Any) -> None:
    text = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text)


def held(valid_ms: int = 10_000, token: int = 7, handle: str = "h") -> dict[str, Any]:
    return {
        "handle": handle,
        "token": token,
        "group": "own:1",
        "valid_ms": valid_ms,
        "waited_ms": 0,
    }


def error(code: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": "because"}}


class Made(unittest.TestCase):
    def fake(self, reply: Reply) -> Fake:
        fake = Fake(reply)
        self.addCleanup(fake.stop)
        return fake

    def client(self, *fakes: Fake, **more: Any) -> Client:
        client = Client([fake.url for fake in fakes], timeout=0.5, **more)
        self.addCleanup(client.close)
        return client

    def test_errors_have_their_classes(self) -> None:
        cases = [
            (401, "unauthenticated", Unauthenticated),
            (403, "not_permitted", NotPermitted),
            (403, "foreign_handle", NotPermitted),
            (400, "size", BadRequest),
            (413, "body_too_large", BadRequest),
            (429, "queue_full", LimitReached),
            (503, "no_quorum", NoQuorum),
            (500, "anything", NoQuorum),
        ]
        for status, code, kind in cases:
            fake = self.fake(lambda h, _p, _b, s=status, c=code: say(h, s, error(c)))  # type: ignore[misc]
            with self.assertRaises(kind) as caught:
                self.client(fake).show("x")
            self.assertEqual(caught.exception.code, code)
            self.assertEqual(caught.exception.status, status)
            self.assertEqual(str(caught.exception), "because")

    def test_the_token_is_sent_and_never_in_the_open(self) -> None:
        fake = self.fake(lambda h, _p, _b: say(h, 200, {"nodes": []}))
        self.client(fake, token="s3cret\n", allow_plain=True).status()
        self.assertEqual(fake.seen[0][2]["Authorization"], "Bearer s3cret")
        with self.assertRaisesRegex(ValueError, "needs https"):
            Client(fake.url, token="s3cret")
        with self.assertRaises(ValueError):
            Client(fake.url, token="two words", allow_plain=True)
        self.assertNotIn("s3cret", repr(self.client(fake, token="s3cret", allow_plain=True)))

    def test_endpoints_are_judged(self) -> None:
        cases: list[Any] = ["", "10.0.0.1:7001", "ftp://x", "http://u:p@h", "http://h/?q", []]
        for wrong in cases:
            with self.assertRaises(ValueError, msg=repr(wrong)):
                Client(wrong)
        with self.assertRaisesRegex(ValueError, "plain HTTP"):
            Client("http://127.0.0.1:1", ca="ca.pem")
        with self.assertRaisesRegex(ValueError, "cert and key"):
            Client("https://127.0.0.1:1", cert="cert.pem")
        self.assertEqual(Endpoint.parse("https://[::1]:7/a/").port, 7)
        self.assertEqual(Endpoint.parse("https://h").port, 443)

    def test_the_deadline_counts_from_the_send(self) -> None:
        def reply(handler: Any, path: str, _body: dict[str, Any]) -> None:
            if path.endswith("acquire"):
                time.sleep(0.4)
            answered.append(now())
            say(handler, 200, held(valid_ms=30_000))

        answered: list[float] = []
        lock = self.client(self.fake(reply)).lock("x", ttl=30)
        self.assertLess(lock.deadline, answered[0] - 0.4 + 30)
        lock.release()

    def test_an_answer_that_came_too_late_is_given_back(self) -> None:
        def reply(handler: Any, path: str, _body: dict[str, Any]) -> None:
            late = path.endswith("acquire") and len(fake.seen) == 1
            say(handler, 200, held(valid_ms=1 if late else 9000))

        fake = self.fake(reply)
        lock = self.client(fake).lock("x")
        paths = [path for path, _, _ in fake.seen]
        self.assertEqual(
            paths[:3], ["/v1/locks/x/acquire", "/v1/locks/release", "/v1/locks/x/acquire"]
        )
        self.assertEqual(fake.seen[0][1]["id"], fake.seen[2][1]["id"])
        lock.release()

    def test_the_newest_handle_is_used(self) -> None:
        def reply(handler: Any, _path: str, body: dict[str, Any]) -> None:
            count = int(body.get("handle", "0")) + 1
            say(handler, 200, held(token=count, handle=str(count)))

        fake = self.fake(reply)
        lock = self.client(fake).lock("x")
        for _ in range(2):
            renewed(lock)
        self.assertEqual(lock.token, 3)
        lock.release()
        path, body, _ = fake.seen[-1]
        self.assertEqual((path, body["handle"]), ("/v1/locks/release", str(lock.token)))

    def test_a_renewal_that_says_lost_ends_it_at_once(self) -> None:
        def reply(handler: Any, path: str, _body: dict[str, Any]) -> None:
            if path.endswith("keepalive"):
                say(handler, 410, error("lost"))
            else:
                say(handler, 200, held(valid_ms=60_000))

        lock = self.client(self.fake(reply)).lock("x", ttl=60)
        lock._hold.next_renewal = now()
        self.assertTrue(lock.lost.wait(30))
        self.assertFalse(lock.held)
        with self.assertRaises(Lost), lock:
            pass

    def test_what_a_slow_answer_says_after_the_deadline_does_not_count(self) -> None:
        def reply(handler: Any, path: str, _body: dict[str, Any]) -> None:
            if path.endswith("keepalive"):
                time.sleep(1.5)
                say(handler, 200, held())
            else:
                say(handler, 200, held(valid_ms=1000))

        lock = self.client(self.fake(reply)).lock("x", ttl=1)
        deadline = lock.deadline
        self.assertTrue(lock.lost.wait(30))
        until("the answer is there", lambda: now() > deadline + 1)
        self.assertEqual(lock.deadline, deadline)
        self.assertFalse(lock.held)

    def test_a_callback_that_fails_does_no_harm(self) -> None:
        def reply(handler: Any, path: str, _body: dict[str, Any]) -> None:
            gone = path.endswith("keepalive")
            say(handler, 410 if gone else 200, error("lost") if gone else held())

        def fails(_lock: Any) -> None:
            raise RuntimeError("mine")

        with self.assertLogs("conclave_lock", "ERROR"):
            lock = self.client(self.fake(reply)).lock("x", ttl=1, on_lost=fails)
            self.assertTrue(lock.lost.wait(30))
            time.sleep(0.1)

    def test_another_node_is_asked_where_that_may_help(self) -> None:
        for status, code in ((503, "no_quorum"), (503, "not_ready"), (429, "too_many_waiters")):
            one = self.fake(lambda h, _p, _b, s=status, c=code: say(h, s, error(c)))  # type: ignore[misc]
            two = self.fake(lambda h, _p, _b: say(h, 200, held()))
            self.client(one, two).lock("x").release()
            self.assertEqual(one.seen[0][1]["id"], two.seen[0][1]["id"])

    def test_a_node_that_stands_still_is_left_and_one_that_thinks_is_not(self) -> None:
        over = threading.Event()
        self.addCleanup(over.set)
        # It takes every request and says nothing more, not even that it lives.
        frozen = self.fake(lambda _h, _p, _b: over.wait())  # type: ignore[arg-type,return-value]
        well = self.fake(lambda h, _p, _b: say(h, 200, held()))
        client = self.client(frozen, well)
        # Nothing but the question whether it lives tells the two apart.
        client._transport.patience = 3600
        client.lock("x").release()
        self.assertEqual(frozen.seen[0][1]["id"], well.seen[0][1]["id"])
        self.assertIn("/healthz", [path for path, _, _ in frozen.seen])

        probes = threading.Event()

        def thinks(handler: Any, path: str, _body: dict[str, Any]) -> None:
            if path == "/healthz":
                probes.set()
            elif path.endswith("/acquire"):
                # It has been asked whether it lives, and has said so.
                probes.wait(60)
                time.sleep(0.3)
            say(handler, 200, held())

        slow, other = self.fake(thinks), self.fake(lambda h, _p, _b: say(h, 200, held()))
        self.client(slow, other).lock("x").release()
        self.assertEqual(other.seen, [])

    def test_a_kept_connection_that_the_node_closed_is_replaced(self) -> None:
        def reply(handler: Any, _path: str, _body: dict[str, Any]) -> None:
            say(handler, 200, {"nodes": []})
            # Closed without a word about it, as a node does that restarts.
            handler.close_connection = True

        client = self.client(self.fake(reply))
        for _ in range(5):
            client.status()

    def test_a_watch_goes_on_at_another_node(self) -> None:
        def stream(token: int) -> Reply:
            def reply(handler: Any, _path: str, _body: dict[str, Any]) -> None:
                handler.send_response(200)
                handler.send_header("Content-Type", "text/event-stream")
                handler.send_header("Connection", "close")
                handler.end_headers()
                note = {"holders": [{"mode": "exclusive", "token": token, "note": f"v{token}"}]}
                text = json.dumps(note)
                handler.wfile.write(f": alive\n\nid: 1\ndata: {text}\n\n".encode())
                handler.close_connection = True

            return reply

        client = self.client(self.fake(stream(1)), self.fake(stream(2)))
        watch = client.watch("x")
        seen = {next(watch).holders[0].token for _ in range(4)}
        self.assertEqual(seen, {1, 2})
        leaders = client.observe("x")
        tokens = []
        for leader in leaders:
            assert leader is not None
            tokens.append(leader.token)
            if leader.token == 2:
                break
        self.assertEqual(tokens, sorted(tokens))

    def test_bytes_come_back_from_json(self) -> None:
        for raw in (b"", b"a", "ü".encode(), b"\xff\x00"):
            self.assertEqual(to_bytes(json.loads(json.dumps(to_json(raw)))), raw)
        odd = lock_state({"name": 3, "holders": [1, {"mode": {"group": "g"}}], "waiters": "x"})
        self.assertEqual(odd.holders[0].group_name, "g")
        self.assertIsNone(odd.leader)


if __name__ == "__main__":
    unittest.main()
