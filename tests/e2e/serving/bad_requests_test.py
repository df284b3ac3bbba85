"""Bad requests and hostile peers: a clear error each, and service goes on."""

import contextlib
import os
import pathlib
import random
import shutil
import socket
import tempfile
import unittest

import torch

from tests.e2e import raw_http2, support

try:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    from tests.e2e.kserve_requests import DATATYPES, request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")


class BadRequests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-bad-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        support.export("dlrm", cls.folder / "dlrm")
        support.export("two_tower", cls.folder / "two_tower")
        cls.repository = cls.folder / "repo"
        for name in ("dlrm", "two_tower"):
            support.add_model(
                cls.repository, name, cls.folder / name / f"{name}.pt2"
            )
        cls.hn = support.gpu_node(cls.repository)
        cls.addClassCleanup(cls.hn.close)
        cls.cn = support.cpu_node(cls.repository, [cls.hn.address])
        cls.addClassCleanup(cls.cn.close)
        cls.channel = grpc.insecure_channel(cls.cn.address)
        cls.addClassCleanup(cls.channel.close)
        cls.stub = service_pb2_grpc.GRPCInferenceServiceStub(cls.channel)
        support.wait_until(
            lambda: cls.stub.ServerReady(
                service_pb2.ServerReadyRequest()
            ).ready,
            "the CN is ready",
        )
        cls.tensors = support.make_inputs(
            cls.folder / "dlrm" / "dlrm.json", 5, 7
        )
        answer = cls.stub.ModelInfer(request_of("dlrm", cls.tensors))
        cls.scores = answer.raw_output_contents[0]

    def good(self):
        return request_of("dlrm", self.tensors)

    def index(self, request, name):
        return [item.name for item in request.inputs].index(name)

    def refuse(self, request, code, *words):
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.ModelInfer(request, timeout=20)
        self.assertEqual(
            caught.exception.code(), code, caught.exception.details()
        )
        for word in words:
            self.assertIn(word, caught.exception.details())
        # The next good request is answered as before.
        answer = self.stub.ModelInfer(self.good(), timeout=20)
        self.assertEqual(answer.raw_output_contents[0], self.scores)

    def refuse_argument(self, request, *words):
        self.refuse(request, grpc.StatusCode.INVALID_ARGUMENT, *words)

    def test_unknown_model_or_version(self):
        request = self.good()
        request.model_name = "nosuch"
        self.refuse(request, grpc.StatusCode.NOT_FOUND, "nosuch")
        request = self.good()
        request.model_version = "99"
        self.refuse(request, grpc.StatusCode.NOT_FOUND, "99")
        for version in ("x", "-1", "1e9", "99999999999999999999"):
            request = self.good()
            request.model_version = version
            self.refuse(request, grpc.StatusCode.NOT_FOUND, version)

    def test_missing_extra_and_misnamed_inputs(self):
        request = self.good()
        at = self.index(request, "ids_3")
        del request.inputs[at]
        del request.raw_input_contents[at]
        self.refuse_argument(request, "ids_3")
        request = self.good()
        request.inputs.add(name="surplus", datatype="FP32", shape=[1])
        request.raw_input_contents.append(b"\0" * 4)
        self.refuse_argument(request, "surplus")
        request = self.good()
        request.inputs[at].name = "idz_3"
        self.refuse_argument(request, "id")
        request = self.good()
        request.inputs[at].name = "ids_4"
        self.refuse_argument(request, "ids_4")

    def test_wrong_dtype(self):
        request = self.good()
        at = self.index(request, "dense")
        for dtype in ("INT32", "FP64", "BYTES", "NONSENSE", ""):
            request.inputs[at].datatype = dtype
            self.refuse_argument(request, "dense")

    def test_wrong_shapes(self):
        at = self.index(self.good(), "dense")
        for shape in (
            [5, 12], [65], [5, 13, 1], [], [-5, -13], [-1, 13],
            [2**62, 2**62], [2**63 - 1, 13], [0, 13], [4, 13],
        ):
            request = self.good()
            del request.inputs[at].shape[:]
            request.inputs[at].shape.extend(shape)
            self.refuse_argument(request, "dense")

    def test_batches_that_disagree(self):
        request = self.good()
        at = self.index(request, "dense")
        request.inputs[at].shape[0] = 6
        request.raw_input_contents[at] += b"\0" * 13 * 4
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.ModelInfer(request)
        self.assertEqual(
            caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT
        )

    def test_batch_of_zero(self):
        request = self.good()
        for i, item in enumerate(request.inputs):
            length = 1 if item.name.startswith("offsets") else 0
            item.shape[0] = length
            request.raw_input_contents[i] = b"\0" * 8 * length
        self.refuse_argument(request, "dense")

    def test_raw_length_that_does_not_match(self):
        at = self.index(self.good(), "dense")
        for change in (lambda raw: raw[:-1], lambda raw: raw + b"\0", lambda raw: b""):
            request = self.good()
            request.raw_input_contents[at] = change(
                request.raw_input_contents[at]
            )
            self.refuse_argument(request, "dense")
        request = self.good()
        del request.raw_input_contents[-1]
        self.refuse_argument(request)

    def test_raw_and_typed_contents_at_once(self):
        request = self.good()
        at = self.index(request, "dense")
        request.inputs[at].contents.fp32_contents.extend([0.0] * 65)
        self.refuse_argument(request, "dense")

    def test_typed_contents_of_the_wrong_kind(self):
        request = service_pb2.ModelInferRequest(model_name="dlrm")
        for name, tensor in self.tensors.items():
            item = request.inputs.add(
                name=name,
                datatype=DATATYPES[tensor.dtype],
                shape=list(tensor.shape),
            )
            values = tensor.flatten().tolist()
            if tensor.dtype == torch.float32:
                item.contents.fp64_contents.extend(values)
            else:
                item.contents.int64_contents.extend(values)
        self.refuse_argument(request, "dense")

    def test_ids_outside_their_table(self):
        rows = 10**9
        for bad in (rows, -1, 2**63 - 1, -(2**63)):
            tensors = dict(self.tensors)
            ids = tensors["ids_2"].clone()
            position = len(ids) - 1
            self.assertGreaterEqual(position, 0, "setUpClass draws an id")
            ids[position] = bad
            tensors["ids_2"] = ids
            self.refuse_argument(
                request_of("dlrm", tensors), "tables.2.weight", str(bad),
                str(position),
            )

    def test_offsets_that_fall_or_pass_the_end(self):
        offsets = self.tensors["offsets_1"]
        for change in (
            lambda o: o.flip(0), lambda o: o + 1, lambda o: o - 1,
            lambda o: torch.cat([o[:-1], torch.tensor([2**40])]),
            lambda o: torch.cat([o[:-1], torch.tensor([-(2**63)])]),
        ):
            tensors = dict(self.tensors)
            tensors["offsets_1"] = change(offsets)
            if torch.equal(tensors["offsets_1"], offsets):
                continue
            self.refuse_argument(request_of("dlrm", tensors), "offsets_1")

    def test_unknown_output(self):
        request = self.good()
        request.outputs.add(name="nosuch")
        self.refuse_argument(request, "nosuch")

    def test_bytes_that_are_no_request(self):
        # A varint without an end, JSON, and a compressed message whose client
        # named an encoding that gRPC does not know.
        for data in (b"\xff\xff\xff", b'{"model_name": "dlrm"}', b"(\xb5/\xfd zstd"):
            with self.assertRaises(grpc.RpcError) as caught:
                self.channel.unary_unary(raw_http2.INFER)(data, timeout=20)
            self.assertEqual(
                caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, data
            )
            self.assertIn("not a ModelInferRequest", caught.exception.details())

    def test_unimplemented_methods_say_so(self):
        methods = [
            f"{kind}SharedMemory{action}"
            for kind in ("System", "Cuda")
            for action in ("Status", "Register", "Unregister")
        ]
        for method in (*methods, "LogSettings", "ModelStreamInfer"):
            with self.subTest(method), self.assertRaises(grpc.RpcError) as caught:
                call = getattr(self.stub, method)
                if method == "ModelStreamInfer":
                    list(call(iter([self.good()]), timeout=60))
                else:
                    call(getattr(service_pb2, f"{method}Request")(), timeout=60)
            self.assertEqual(
                caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED
            )
            self.assertIn(f"{method} is not supported", caught.exception.details())
        self.stub.ModelInfer(self.good())

    def test_garbage_on_the_hn_port(self):
        seed = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
        print(f"seed {seed}")
        draw = random.Random(seed)
        host, _, port = self.hn.address.rpartition(":")
        for i in range(40):
            with socket.create_connection((host, int(port)), timeout=10) as peer:
                data = draw.randbytes(draw.choice((1, 3, 12, 64, 5000)))
                if i % 4 == 0:
                    data = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                # Refused: the HN closes, with or without a last word, maybe
                # before all is sent (ENOTCONN, EPIPE, ECONNRESET).
                with contextlib.suppress(OSError):
                    peer.sendall(data)
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(4096):
                        pass
        self.assertIsNone(self.hn.process.poll(), self.hn.output())
        answer = self.stub.ModelInfer(self.good(), timeout=20)
        self.assertEqual(answer.raw_output_contents[0], self.scores)

    def test_random_requests_never_crash(self):
        seed = int(os.environ.get("REFRACT_TEST_SEED", random.randrange(2**31)))
        print(f"seed {seed}")
        draw = random.Random(seed)
        for _ in range(150):
            request = self.good()
            for _ in range(draw.randrange(1, 4)):
                at = draw.randrange(len(request.inputs))
                item = request.inputs[at]
                kind = draw.randrange(5)
                if kind == 0 and item.shape:
                    item.shape[draw.randrange(len(item.shape))] = draw.choice(
                        (0, 1, -1, 2**31, 2**63 - 1, draw.randrange(100))
                    )
                elif kind == 1:
                    raw = bytearray(request.raw_input_contents[at])
                    for _ in range(min(3, len(raw))):
                        raw[draw.randrange(len(raw))] = draw.randrange(256)
                    request.raw_input_contents[at] = bytes(raw)
                elif kind == 2:
                    request.raw_input_contents[at] = draw.randbytes(
                        8 * draw.randrange(20)
                    )
                elif kind == 3:
                    item.name = draw.choice(("", "dense", "\0", "x" * 3000))
                else:
                    item.shape.append(draw.randrange(4))
            try:
                self.stub.ModelInfer(request, timeout=20)
            except grpc.RpcError as error:
                self.assertEqual(
                    error.code(),
                    grpc.StatusCode.INVALID_ARGUMENT,
                    error.details(),
                )
        self.assertIsNone(self.cn.process.poll(), self.cn.output())
        self.assertIsNone(self.hn.process.poll(), self.hn.output())
        answer = self.stub.ModelInfer(self.good(), timeout=20)
        self.assertEqual(answer.raw_output_contents[0], self.scores)


class OtherModelAtTheHn(unittest.TestCase):
    """The HN holds another model under the same name: refused, by name."""

    def test_digest_mismatch_keeps_the_cn_not_ready(self):
        with tempfile.TemporaryDirectory(prefix="refract-hash-") as folder:
            folder = pathlib.Path(folder)
            for seed in (1, 2):
                support.export("wide_deep", folder / str(seed), "--seed", seed)
                support.add_model(
                    folder / f"repo{seed}", "m",
                    folder / str(seed) / "wide_deep.pt2",
                )
            hn = support.gpu_node(folder / "repo1")
            self.addCleanup(hn.close)
            cn = support.cpu_node(folder / "repo2", [hn.address])
            self.addCleanup(cn.close)
            support.wait_until(
                lambda: "refuses model 'm'" in cn.output()
                and "refuse" in hn.output(),
                "both ends say why",
            )
            with grpc.insecure_channel(cn.address) as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                self.assertFalse(
                    stub.ServerReady(service_pb2.ServerReadyRequest()).ready
                )
            self.assertIsNone(hn.process.poll())


if __name__ == "__main__":
    unittest.main()
