"""KServe v2 over HTTP: Triton's client, curl, and clients that mean harm."""

import contextlib
import gzip
import json
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
import zlib

import numpy

from tests.e2e import support

try:
    import grpc
    import tritonclient.http as triton
    from tritonclient.grpc import service_pb2_grpc

    from tests.e2e.kserve_requests import DATATYPES, request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc,http] is missing: {error}")

MIB = 1 << 20
LENGTH = "Inference-Header-Content-Length"


def read_answer(sock_file):
    """(status, headers, body) of one answer."""
    line = sock_file.readline()
    if not line:
        return None
    status = int(line.split()[1])
    headers = {}
    while True:
        line = sock_file.readline().strip()
        if not line:
            break
        name, _, value = line.partition(b":")
        headers[name.decode().lower()] = value.strip().decode()
    body = sock_file.read(int(headers.get("content-length", 0)))
    return status, headers, body


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-http-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        support.export("wide_deep", cls.folder / "wide_deep")
        cls.repository = cls.folder / "repo"
        support.add_model(
            cls.repository, "m", cls.folder / "wide_deep" / "wide_deep.pt2",
            method="all-cn",
        )
        cls.tensors = support.make_inputs(
            cls.folder / "wide_deep" / "wide_deep.json", 5, 7
        )
        cls.cn = cls.start("--http-max-input-size", "4MiB",
                           "--http-stall-timeout", 2)
        cls.addClassCleanup(cls.cn.close)
        channel = grpc.insecure_channel(cls.cn.address)
        cls.addClassCleanup(channel.close)
        cls.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        cls.expected = cls.stub.ModelInfer(
            request_of("m", cls.tensors), timeout=60
        )

    @classmethod
    def start(cls, *arguments):
        return support.cpu_node(cls.repository, [], *arguments)

    def setUp(self):
        # Whatever a test did, others are served and nothing stays.
        self.addCleanup(self.check_alive)

    def check_alive(self):
        self.assertEqual(self.infer(self.json_body()), self.expected_data())

    # --------------------------------------------------------------- helpers

    def url(self, path):
        return f"http://127.0.0.1:{self.cn.http_port}{path}"

    def request(self, path, body=None, headers=(), node=None, method=None):
        """(status, headers, body)."""
        port = (node or self.cn).http_port
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", data=body,
            headers=dict(headers), method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def refused(self, status, answer, *words):
        self.assertEqual(answer[0], status, answer[2])
        text = json.loads(answer[2])["error"]
        for word in words:
            self.assertIn(word, text)

    def json_request(self, **fields):
        return {
            "inputs": [
                {
                    "name": name, "datatype": DATATYPES[tensor.dtype],
                    "shape": list(tensor.shape), "data": tensor.tolist(),
                }
                for name, tensor in self.tensors.items()
            ],
            **fields,
        }

    def json_body(self, **fields):
        return json.dumps(self.json_request(**fields)).encode()

    def binary_body(self, tensors=None, **fields):
        """The body, and the length of its JSON."""
        tensors = tensors or self.tensors
        raw = [tensor.numpy().tobytes() for tensor in tensors.values()]
        text = json.dumps(
            {
                "inputs": [
                    {
                        "name": name, "datatype": DATATYPES[tensor.dtype],
                        "shape": list(tensor.shape),
                        "parameters": {"binary_data_size": len(data)},
                    }
                    for (name, tensor), data in zip(tensors.items(), raw)
                ],
                "parameters": {"binary_data_output": True},
                **fields,
            }
        ).encode()
        return text + b"".join(raw), len(text)

    def expected_data(self):
        """The outputs' bytes, as gRPC brings them."""
        return [
            (output.name, output.datatype, list(output.shape), raw)
            for output, raw in zip(
                self.expected.outputs, self.expected.raw_output_contents
            )
        ]

    def data_of(self, headers, body):
        """The same of an answer over HTTP."""
        cut = int(headers.get(LENGTH) or len(body))
        answer, binary = json.loads(body[:cut]), body[cut:]
        kinds = {"FP32": "<f4", "INT64": "<i8"}
        found = []
        for output in answer["outputs"]:
            if "data" in output:
                raw = numpy.array(
                    output["data"], kinds[output["datatype"]]
                ).tobytes()
            else:
                size = output["parameters"]["binary_data_size"]
                raw, binary = binary[:size], binary[size:]
            found.append(
                (output["name"], output["datatype"], output["shape"], raw)
            )
        self.assertEqual(binary, b"")
        return found

    def infer(self, body, headers=(), node=None):
        status, headers, body = self.request(
            "/v2/models/m/infer", body, headers, node
        )
        self.assertEqual(status, 200, body)
        return self.data_of(headers, body)

    @contextlib.contextmanager
    def connection(self, node=None, receive_buffer=None):
        with socket.socket() as sock:
            if receive_buffer:
                sock.setsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer
                )
            sock.settimeout(60)
            sock.connect(("127.0.0.1", (node or self.cn).http_port))
            yield sock

    def head(self, length, path="/v2/models/m/infer", method="POST", more=()):
        return "".join(
            line + "\r\n"
            for line in (
                f"{method} {path} HTTP/1.1", "Host: x",
                f"Content-Length: {length}", *more, "",
            )
        ).encode()

    # ------------------------------------------------------------ the service

    def test_tritonclient(self):
        client = triton.InferenceServerClient(
            f"127.0.0.1:{self.cn.http_port}", network_timeout=60
        )
        self.addCleanup(client.close)
        self.assertTrue(client.is_server_live())
        self.assertTrue(client.is_server_ready())
        self.assertTrue(client.is_model_ready("m"))
        self.assertTrue(client.is_model_ready("m", "1"))
        self.assertFalse(client.is_model_ready("nobody"))
        self.assertIn(
            "binary_tensor_data", client.get_server_metadata()["extensions"]
        )
        metadata = client.get_model_metadata("m")
        self.assertEqual(metadata["versions"], ["1"])
        self.assertEqual(
            {tensor["name"] for tensor in metadata["inputs"]},
            set(self.tensors),
        )
        self.assertEqual(metadata["inputs"][0]["shape"][0], -1)
        self.assertEqual(client.get_model_config("m")["name"], "m")
        index = client.get_model_repository_index()
        self.assertEqual(
            index,
            [{"name": "m", "version": "1", "state": "READY", "reason": ""}],
        )

        def inputs(binary):
            made = []
            for name, tensor in self.tensors.items():
                one = triton.InferInput(
                    name, list(tensor.shape), DATATYPES[tensor.dtype]
                )
                one.set_data_from_numpy(tensor.numpy(), binary_data=binary)
                made.append(one)
            return made

        name = self.expected.outputs[0].name
        for binary_in in (True, False):
            for binary_out in (True, False):
                for coding in (None, "gzip", "deflate"):
                    result = client.infer(
                        "m", inputs(binary_in), request_id="r 1",
                        outputs=[
                            triton.InferRequestedOutput(
                                name, binary_data=binary_out
                            )
                        ],
                        request_compression_algorithm=coding,
                        response_compression_algorithm=coding,
                        timeout=30_000_000,
                    )
                    self.assertEqual(result.get_response()["id"], "r 1")
                    self.assertEqual(
                        result.as_numpy(name).tobytes(),
                        self.expected.raw_output_contents[0],
                    )
        statistics = client.get_inference_statistics("m")["model_stats"][0]
        self.assertGreaterEqual(
            statistics["inference_stats"]["success"]["count"], 12
        )
        for control in (client.load_model, client.unload_model):
            with self.assertRaises(triton.InferenceServerException) as caught:
                control("m")
            self.assertIn("explicit", str(caught.exception))

    def test_curl(self):
        if shutil.which("curl") is None:
            self.skipTest("curl is missing")
        body = self.folder / "request.json"
        body.write_bytes(self.json_body(id="c1"))

        def curl(*arguments):
            return subprocess.run(
                ["curl", "-sS", "--max-time", "60", *arguments],
                check=True, capture_output=True, text=True,
            ).stdout

        code = ("-o", "/dev/null", "-w", "%{http_code}")
        self.assertEqual(curl(*code, self.url("/v2/health/ready")), "200")
        self.assertEqual(curl(*code, self.url("/v2/health/live")), "200")
        self.assertEqual(curl(*code, self.url("/v2/models/x/ready")), "404")
        self.assertEqual(json.loads(curl(self.url("/v2")))["name"], "refract")
        answer = curl("-d", f"@{body}", self.url("/v2/models/m/infer"))
        self.assertEqual(json.loads(answer)["id"], "c1")
        self.assertEqual(
            self.data_of({}, answer.encode()), self.expected_data()
        )
        # Chunked, with Expect: 100-continue, and compressed both ways.
        for more in (
            ("-H", "Transfer-Encoding: chunked"),
            ("-H", "Expect: 100-continue"),
            ("--compressed",),
            ("--http1.0",),
        ):
            answer = curl(
                *more, "--data-binary", f"@{body}",
                self.url("/v2/models/m/versions/1/infer"),
            )
            self.assertEqual(
                self.data_of({}, answer.encode()), self.expected_data(), more
            )

    def test_all_forms_give_grpcs_bytes(self):
        expected = self.expected_data()
        self.assertEqual(self.infer(self.json_body()), expected)
        binary, cut = self.binary_body()
        self.assertEqual(self.infer(binary, {LENGTH: cut}), expected)
        mixed = self.json_request()
        name, tensor = next(iter(self.tensors.items()))
        raw = tensor.numpy().tobytes()
        del mixed["inputs"][0]["data"]
        mixed["inputs"][0]["parameters"] = {"binary_data_size": len(raw)}
        text = json.dumps(mixed).encode()
        self.assertEqual(self.infer(text + raw, {LENGTH: len(text)}), expected)
        for coding, compress in (("gzip", gzip.compress),
                                 ("deflate", zlib.compress)):
            self.assertEqual(
                self.infer(
                    compress(binary), {LENGTH: cut, "Content-Encoding": coding}
                ),
                expected,
            )
        # A long answer, so that it is compressed.
        tensors = support.make_inputs(
            self.folder / "wide_deep" / "wide_deep.json", 2000, 3
        )
        plain = self.stub.ModelInfer(request_of("m", tensors), timeout=60)
        body, cut = self.binary_body(tensors)
        for coding, expand in (("gzip", gzip.decompress),
                               ("deflate", zlib.decompress)):
            status, headers, answer = self.request(
                "/v2/models/m/infer", body,
                {LENGTH: cut, "Accept-Encoding": coding},
            )
            self.assertEqual(status, 200)
            self.assertEqual(headers["Content-Encoding"], coding)
            found = self.data_of(headers, expand(answer))
            self.assertEqual(
                [raw for *_, raw in found], list(plain.raw_output_contents)
            )

    def test_pipelined_requests_are_answered_in_order(self):
        bodies = [self.json_body(id=f"p{i}") for i in range(20)]
        health = self.head(0, "/v2/health/live", "GET")
        with self.connection() as sock:
            sock.sendall(
                b"".join(self.head(len(b)) + b + health for b in bodies)
            )
            answers = sock.makefile("rb")
            for i in range(20):
                status, headers, body = read_answer(answers)
                self.assertEqual(status, 200, body)
                self.assertEqual(json.loads(body)["id"], f"p{i}")
                self.assertEqual(self.data_of({}, body), self.expected_data())
                self.assertEqual(read_answer(answers)[0], 200)

    def test_timeout_parameter_is_the_deadline(self):
        answer = self.request(
            "/v2/models/m/infer", self.json_body(parameters={"timeout": 1})
        )
        self.refused(504, answer)

    # -------------------------------------------------------------- bad input

    def test_errors_are_grpcs_with_the_right_status(self):
        request = request_of("m", self.tensors)
        request.inputs[0].name = "nobody"
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.ModelInfer(request, timeout=60)
        body = self.json_request()
        body["inputs"][0]["name"] = "nobody"
        answer = self.request("/v2/models/m/infer", json.dumps(body).encode())
        self.assertEqual(answer[0], 400)
        self.assertEqual(
            json.loads(answer[2])["error"], caught.exception.details()
        )
        self.refused(
            404, self.request("/v2/models/x/infer", b"{"), "unknown model"
        )
        self.refused(
            404, self.request("/v2/models/m/versions/9/infer", b"{}"), "9"
        )
        self.refused(404, self.request("/v2/nothing"), "/v2/nothing")
        self.refused(501, self.request("/v2/logging"), "not supported")
        answer = self.request("/v2/models/m/infer")
        self.refused(405, answer, "POST")
        self.assertEqual(answer[1]["Allow"], "POST")

    def test_malformed_json_is_answered_with_its_position(self):
        self.refused(
            400, self.request("/v2/models/m/infer", b'{"inputs":\n [,]}'),
            "line 2, column 3",
        )
        self.refused(
            400, self.request("/v2/repository/index", b"[1]"), "object"
        )
        self.refused(
            400, self.request("/v2/models/m/infer", b"\xff" * 100), "JSON"
        )
        self.refused(
            400, self.request("/v2/models/m/infer", b"[" * MIB), "JSON"
        )

    def test_binary_sizes_that_do_not_add_up(self):
        body, cut = self.binary_body()
        for wrong, length, word in (
            (body[:-1], cut, "bytes of binary data are left"),
            (body + b"x", cut, "belong to no input"),
            (body, cut - 1, "JSON"),
            (body, len(body) + 1, LENGTH),
            (body, "1x", LENGTH),
            (body, None, "JSON"),
        ):
            headers = {} if length is None else {LENGTH: length}
            answer = self.request("/v2/models/m/infer", wrong, headers)
            self.refused(400, answer, word)

    def test_content_encodings(self):
        answer = self.request(
            "/v2/models/m/infer", b"x", {"Content-Encoding": "br"}
        )
        self.refused(415, answer, "'br'")
        self.assertEqual(answer[1]["Accept-Encoding"], "gzip, deflate")
        packed = gzip.compress(self.json_body())
        for wrong in (packed[:-9], packed + b"x", b"no gzip"):
            answer = self.request(
                "/v2/models/m/infer", wrong, {"Content-Encoding": "gzip"}
            )
            self.refused(400, answer, "compressed bytes")
        # 1 GiB of zeros in 1 MiB.
        packer = zlib.compressobj(9, wbits=31)
        bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(1024))
        bomb += packer.flush()
        self.refused(
            413,
            self.request(
                "/v2/models/m/infer", bomb, {"Content-Encoding": "gzip"}
            ),
            "--http-max-input-size",
        )

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
        # Of unknown length.
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

    # ------------------------------------------------------------ the process

    def test_where_it_listens(self):
        # Loopback unless told otherwise, and the log says so.
        listening = self.start()
        self.addCleanup(listening.close)
        self.assertGreater(listening.http_port, 0)
        support.wait_until(
            lambda: "HTTP on 127.0.0.1:" in listening.output(), "it is logged"
        )
        # The default port may be taken; a port that was asked for may not.
        taken = str(self.cn.http_port)
        done = subprocess.run(
            [
                support.program("refract-cpu-node"), "--model-repository",
                str(self.repository), "--grpc-port", "0", "--metrics-port",
                "off", "--http-port", taken,
            ],
            capture_output=True, text=True, timeout=60, check=False,
        )
        self.assertEqual(done.returncode, 1, done)
        self.assertIn(taken, done.stderr.splitlines()[-1])
        for flag, value in (("--http-port", "80000"),
                            ("--http-max-input-size", "0"),
                            ("--http-max-connections", "x")):
            done = subprocess.run(
                [
                    support.program("refract-cpu-node"), "--model-repository",
                    str(self.repository), flag, value,
                ],
                capture_output=True, text=True, timeout=60, check=False,
            )
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(flag, done.stderr)
        node = self.start("--http-port", "off")
        self.addCleanup(node.close)
        self.assertIsNotNone(node.metrics_url)
        self.assertIsNone(node.http_address)

    def test_stopping_answers_what_is_under_way(self):
        node = self.start("--lame-duck", 1)
        self.addCleanup(node.close)
        answers, failures = [], []
        stop = threading.Event()

        def drive():
            while not stop.is_set():
                try:
                    answers.append(
                        self.request(
                            "/v2/models/m/infer", self.json_body(), node=node
                        )[0]
                    )
                except OSError as error:
                    # Once the node has stopped: a connection is refused, or
                    # closed before its request is read.
                    failures.append(str(error))
                    return

        threads = [threading.Thread(target=drive) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        self.assertEqual(node.stop(), 0)
        stop.set()
        for thread in threads:
            thread.join()
        self.assertEqual(set(answers) - {200, 503}, set())
        self.assertGreater(answers.count(200), 10)
        for failure in failures:
            self.assertTrue(re.search("refused|reset|closed|pipe", failure), failure)


if __name__ == "__main__":
    unittest.main()
