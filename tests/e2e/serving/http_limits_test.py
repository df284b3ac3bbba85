"""Limits of HTTP: long bodies, slow clients, and clients that mean harm."""

import contextlib
import re
import socket
import struct
import threading
import time
import unittest
import urllib.request

from tests.e2e import support

try:
    import grpc
    from tritonclient.grpc import service_pb2_grpc

    from tests.e2e.http_clients import HttpTest, LENGTH, MIB, read_answer
    from tests.e2e.kserve_requests import request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc,http] is missing: {error}")


class HttpLimits(HttpTest):
    def test_bodies_over_the_limit(self):
        with self.connection() as sock:
            sock.sendall(self.head(5 * MIB) + b"{")
            answers = sock.makefile("rb")
            status, headers, body = read_answer(answers)
            self.assertEqual(status, 413)
            self.assertIn(b"--http-max-input-size", body)
            self.assertEqual(headers["connection"], "close")
        # With nobody asked to send it.
        with self.connection() as sock:
            sock.sendall(self.head(5 * MIB, more=("Expect: 100-continue",)))
            self.assertEqual(read_answer(sock.makefile("rb"))[0], 413)
        # A body of unknown length.
        with self.connection() as sock:
            sock.sendall(
                b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(5):
                    sock.sendall(b"100000\r\n" + bytes(MIB) + b"\r\n")
            self.assertEqual(read_answer(sock.makefile("rb"))[0], 413)
        # The longest that is taken: decoded, and refused by the model.
        self.refused(
            400, self.request("/v2/models/m/infer", b" " * (4 * MIB)), "JSON"
        )

    def test_header_floods_and_other_bytes(self):
        for flood in (
            b"GET /v2 HTTP/1.1\r\n" + b"A: b\r\n" * 100_000,
            b"GET /v2 HTTP/1.1\r\nA: " + b"b" * MIB,
            b"GET /" + b"v" * MIB,
        ):
            with self.connection() as sock:
                with contextlib.suppress(
                    BrokenPipeError, ConnectionResetError
                ):
                    sock.sendall(flood)
                answer = read_answer(sock.makefile("rb"))
                self.assertEqual(answer[0], 431, flood[:30])
        for garbage in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /v2 HTTP/9.9\r\n\r\n",
            b"GET /v2\r\n\r\n",
            b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 1\r\n"
            b"Content-Length: 2\r\n\r\nxx",
            b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 3\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST /v2/models/m/infer HTTP/1.1\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        ):
            with self.connection() as sock:
                sock.sendall(garbage)
                answer = read_answer(sock.makefile("rb"))
                self.assertEqual(answer[0], 400, garbage)
        with self.connection() as sock:
            sock.sendall(
                b"POST /v2/models/m/infer HTTP/1.1\r\n"
                b"Transfer-Encoding: gzip\r\n\r\n"
            )
            self.assertEqual(read_answer(sock.makefile("rb"))[0], 501)

    def test_half_requests_are_cut(self):
        body = self.json_body()
        with contextlib.ExitStack() as stack:
            halves = []
            for half in (
                b"",
                b"POST /v2/mod",
                self.head(len(body)) + body[: len(body) // 2],
            ):
                sock = stack.enter_context(self.connection())
                sock.sendall(half)
                halves.append(sock)
            # Slow: a byte now and then does not help a header.
            slow = stack.enter_context(self.connection())
            begin = time.monotonic()
            ended = False
            while time.monotonic() < begin + 10 and not ended:
                try:
                    slow.sendall(b"G")
                    slow.settimeout(0.2)
                    ended = slow.recv(1) == b""
                except TimeoutError:
                    pass
                except OSError:
                    ended = True
            self.assertTrue(ended)
            self.assertLess(time.monotonic() - begin, 8)
            for sock in halves:
                self.assertEqual(sock.recv(100), b"")
        support.wait_until(
            lambda: re.search(
                r"client 127\.0\.0\.1 is too slow for --http-stall-timeout: a "
                r"request ends (within its header|after \d+ bytes)",
                self.cn.output(),
            ),
            "the log says so",
        )
        # Clients that are gone in the middle.
        for cut in (1, 30, 150, len(body)):
            with self.connection() as sock:
                sock.sendall((self.head(len(body)) + body)[:cut])
                sock.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )

    def test_slow_readers_are_cut(self):
        tensors = support.make_inputs(
            self.folder / "wide_deep" / "wide_deep.json", 3000, 3
        )
        body, cut = self.binary_body(tensors, parameters={})
        message = self.head(len(body), more=(f"{LENGTH}: {cut}",)) + body
        with self.connection(receive_buffer=4096) as sock:
            # Answers that nobody reads fill both buffers; then the server
            # neither reads nor keeps the connection.
            sock.settimeout(30)
            with self.assertRaises((ConnectionResetError, BrokenPipeError)):
                for _ in range(100_000):
                    sock.sendall(message)
        support.wait_until(
            lambda: "it does not read its answer" in self.cn.output(),
            "the log says so",
        )

    def test_connections_are_bounded(self):
        node = self.start("--http-max-connections", 8)
        self.addCleanup(node.close)
        with contextlib.ExitStack() as stack:
            for _ in range(8):
                sock = stack.enter_context(self.connection(node))
                sock.sendall(self.head(0, "/v2/health/live", "GET"))
                self.assertEqual(read_answer(sock.makefile("rb"))[0], 200)
            self.refused(503, self.request("/v2", node=node), "too many")
        support.wait_until(
            lambda: self.request("/v2", node=node)[0] == 200, "room again"
        )

    def test_memory_of_bodies_is_bounded(self):
        # A quarter of it for bodies that arrive.
        node = self.start("--request-memory", "16MiB",
                          "--http-stall-timeout", 3)
        self.addCleanup(node.close)
        with contextlib.ExitStack() as stack:
            socks = [
                stack.enter_context(self.connection(node)) for _ in range(16)
            ]
            refused = 0
            for sock in socks:
                sock.sendall(self.head(2 * MIB))
                with contextlib.suppress(OSError):
                    sock.settimeout(0.5)
                    sock.sendall(b" " * (MIB + 1))
                    status, _, body = read_answer(sock.makefile("rb"))
                    self.assertEqual(status, 429, body)
                    self.assertIn(b"--request-memory", body)
                    refused += 1
            self.assertGreater(refused, 8)
            # gRPC has memory of its own.
            with grpc.insecure_channel(node.address) as channel:
                service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
                    request_of("m", self.tensors), timeout=60
                )
        support.wait_until(
            lambda: self.infer(self.json_body(), node=node), "memory is back"
        )
        with urllib.request.urlopen(node.metrics_url, timeout=20) as page:
            text = page.read().decode()
        self.assertRegex(text, r"(?m)^refract_http_body_bytes 0$")
        self.assertRegex(text, r"(?m)^refract_http_connections \d+$")

    def test_clients_do_not_wait_behind_long_bodies(self):
        stop = threading.Event()
        body = self.json_body(more=[0] * (MIB + MIB // 2))

        def flood():
            while not stop.is_set():
                self.request("/v2/models/m/infer", body)

        threads = [threading.Thread(target=flood) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(50):
                self.infer(self.json_body())
        finally:
            stop.set()
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    unittest.main()
