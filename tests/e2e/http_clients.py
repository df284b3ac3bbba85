"""Requests over HTTP to a CPU node, for the tests of HTTP."""

import contextlib
import json
import pathlib
import shutil
import socket
import tempfile
import unittest
import urllib.error
import urllib.request

import numpy

from tests.e2e import support

try:
    import grpc
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


class HttpTest(unittest.TestCase):
    """A CPU node with one model over HTTP, requests to it, and its answers."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-http-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.repository, cls.tensors = support.add_wide_deep(cls.folder)
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
        # After every test the node serves other clients and holds no memory of it.
        self.addCleanup(self.check_alive)

    def check_alive(self):
        self.assertEqual(self.infer(self.json_body()), self.expected_data())

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
