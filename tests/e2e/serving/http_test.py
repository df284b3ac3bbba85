"""KServe v2 over HTTP: Triton's client, curl, and requests that are wrong."""

import gzip
import json
import re
import shutil
import subprocess
import threading
import time
import unittest
import zlib

from tests.e2e import support

try:
    import grpc
    import tritonclient.http as triton

    from tests.e2e.http_clients import HttpTest, LENGTH, MIB, read_answer
    from tests.e2e.kserve_requests import DATATYPES, request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc,http] is missing: {error}")


class Http(HttpTest):
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
        # KServe's client reads the body, Triton's the status.
        for name in ("live", "ready"):
            answer = curl(self.url(f"/v2/health/{name}"))
            self.assertEqual(json.loads(answer), {name: True})
        self.assertEqual(curl(self.url("/v2/models/m/ready")), "")
        self.assertEqual(curl(*code, self.url("/v2/models/x/ready")), "404")
        # The form of requests to a proxy (RFC 9112, section 3.2.2).
        for target, status in (
            ("http://h/v2/models/m/ready", "200"),
            ("HTTPS://h:1/v2/health/live?a=/b", "200"),
            ("http://h/v2/models/x/ready", "404"),
            ("http://h", "404"),
        ):
            found = curl(*code, "--request-target", target, self.url("/"))
            self.assertEqual(found, status, target)
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
        done = support.start_once(
            support.program("refract-cpu-node"), "--model-repository", self.repository,
            "--grpc-port", "0", "--metrics-port", "off", "--http-port", taken,
            check=False,
        )
        self.assertEqual(done.returncode, 1, done)
        self.assertIn(taken, done.stderr.splitlines()[-1])
        for flag, value in (("--http-port", "80000"),
                            ("--http-max-input-size", "0"),
                            ("--http-max-connections", "x")):
            done = support.start_once(
                support.program("refract-cpu-node"), "--model-repository",
                self.repository, flag, value, check=False,
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
