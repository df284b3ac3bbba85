"""TLS between CPU nodes and GPU nodes: scores, refusals, certificates that change."""

import contextlib
import pathlib
import shutil
import socket
import ssl
import tempfile
import threading
import unittest

import numpy as np
from safetensors.torch import load_file

from models.zoo import safetensors_io
from tests.e2e import support
from tests.e2e.certificates import Certificates

try:
    import grpc
    from tritonclient.grpc import service_pb2_grpc

    from tests.e2e.kserve_requests import request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")
if shutil.which("openssl") is None:
    raise unittest.SkipTest("the program openssl is missing")

# Eager messages and pulled ones.
BATCHES = (1, 33, 1500)
TOLERANCE = 1e-5


class Load:
    """Requests to a node one after another, until it ends."""

    def __init__(self, test, node):
        self.test, self.node = test, node
        self.stopping = threading.Event()
        self.sent, self.failed = 0, []

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self):
        with grpc.insecure_channel(self.node.address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            while not self.stopping.is_set():
                self.sent += 1
                try:
                    self.test.expect_scores(stub, self.sent % 2)
                except Exception as error:  # pylint: disable=broad-except
                    self.failed.append(repr(error))

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()


class NodeTls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-node-tls-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.repository = cls.folder / "repo"
        support.export("dlrm", cls.folder / "dlrm")
        support.add_model(cls.repository, "dlrm", cls.folder / "dlrm" / "dlrm.pt2")
        cls.cases, pairs = [], []
        for batch in BATCHES:
            tensors = support.make_inputs(
                cls.folder / "dlrm" / "dlrm.json", batch, 11
            )
            path = cls.folder / f"{batch}.safetensors"
            safetensors_io.write(path, tensors)
            pairs += ["--inputs", path, "--outputs", f"{path}.out"]
            cls.cases.append([tensors, f"{path}.out"])
        support.refract(
            "run", cls.repository / "dlrm", "--mode", "reference", *pairs
        )
        for case in cls.cases:
            (scores,) = load_file(case[1]).values()
            case[1] = scores.numpy()
        cls.certificates = Certificates(cls.folder)
        for root in ("root", "next-root", "stranger"):
            cls.certificates.root(root)
        cls.certificates.issue("hn", "root")
        cls.certificates.issue("cn", "root")
        cls.certificates.issue("next", "next-root")
        cls.certificates.issue("forged", "stranger")
        cls.certificates.issue("expired", "root", days=-1)
        cls.certificates.issue("elsewhere", "root", names="DNS:hn.example")

    def flags(self, name, root="root"):
        return (
            "--node-tls-cert", self.folder / f"{name}.crt",
            "--node-tls-key", self.folder / f"{name}.key",
            "--node-tls-ca", self.folder / f"{root}.crt",
        )

    def hn(self, *arguments, port=0):
        node = support.gpu_node(self.repository, *arguments, port=port)
        self.addCleanup(node.close)
        return node

    def cn(self, *nodes_and_flags, transport="auto"):
        """`nodes_and_flags`: GPU nodes first."""
        hns = [part for part in nodes_and_flags if hasattr(part, "address")]
        node = support.cpu_node(
            self.repository, [hn.address for hn in hns], "--transport", transport,
            *nodes_and_flags[len(hns):],
        )
        self.addCleanup(node.close)
        return node

    def expect_scores(self, stub, case):
        tensors, scores = self.cases[case]
        answer = stub.ModelInfer(request_of("dlrm", tensors), timeout=60)
        (raw,) = answer.raw_output_contents
        np.testing.assert_allclose(
            np.frombuffer(raw, np.float32).reshape(scores.shape), scores,
            rtol=0, atol=TOLERANCE,
        )

    @contextlib.contextmanager
    def stub(self, node):
        with grpc.insecure_channel(node.address) as channel:
            yield service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def await_line(self, node, *words):
        def found():
            return any(
                all(word in line for word in words)
                for line in node.output().splitlines()
            )

        support.wait_until(found, f"a line of {node.name} with {words}")

    def await_scores(self, node):
        with self.stub(node) as stub:
            support.wait_until(
                lambda: self.expect_scores(stub, 0) is None, "scores"
            )

    def shown_name(self, node, root, client):
        """The name in the certificate that a GPU node shows."""
        context = ssl.create_default_context(cafile=self.folder / f"{root}.crt")
        context.load_cert_chain(
            self.folder / f"{client}.crt", self.folder / f"{client}.key"
        )
        with socket.create_connection(("127.0.0.1", node.port), 30) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as sock:
                self.assertEqual(sock.version(), "TLSv1.3")
                subject = sock.getpeercert()["subject"]
                return dict(x[0] for x in subject)["commonName"]

    def test_scores_over_every_path_equal_pytorch(self):
        hn = self.hn(*self.flags("hn"))
        self.await_line(hn, "CPU nodes with TLS on")
        for transport in ("tcp", "shm", "auto"):
            with self.subTest(transport):
                cn = self.cn(hn, *self.flags("cn"), transport=transport)
                self.await_scores(cn)
                with self.stub(cn) as stub:
                    for case in range(len(BATCHES)):
                        self.expect_scores(stub, case)
                cn.stop()
        self.await_line(hn, "connected over tcp, certificate /CN=cn")
        self.await_line(hn, "connected over shm, certificate /CN=cn")
        self.assertEqual(self.shown_name(hn, "root", "cn"), "hn")

    def test_strangers_are_refused_and_others_served(self):
        hn = self.hn(*self.flags("hn"))
        good = self.cn(hn, *self.flags("cn"), transport="tcp")
        self.await_scores(good)
        with Load(self, good) as load:
            forged = self.cn(hn, *self.flags("forged"), transport="tcp")
            self.await_line(
                forged, "cannot connect to", "UNAUTHENTICATED",
                "the peer refuses this node's certificate /CN=forged",
            )
            self.await_line(
                hn, "peer 127.0.0.1: connection refused",
                "the peer's certificate /CN=forged: unable to get local issuer",
            )
            plain = self.cn(hn, transport="tcp")
            self.await_line(
                plain, "cannot connect to", "this node takes TLS alone"
            )
            self.await_line(hn, "the peer does not use TLS (--node-tls-cert)")
            # Lines are limited for each address, so these have their own.
            for number, certificate, why in (
                (2, "expired", "certificate /CN=expired: certificate has expired"),
                (3, None, "peer did not return a certificate"),
            ):
                context = ssl.create_default_context(
                    cafile=self.folder / "root.crt"
                )
                if certificate:
                    context.load_cert_chain(
                        self.folder / f"{certificate}.crt",
                        self.folder / f"{certificate}.key",
                    )
                with socket.create_connection(
                    ("127.0.0.1", hn.port), 30, (f"127.0.0.{number}", 0)
                ) as raw, self.assertRaises(OSError), context.wrap_socket(
                    raw, server_hostname="localhost"
                ) as sock:
                    self.assertEqual(sock.recv(1), b"no refusal")
                self.await_line(hn, f"peer 127.0.0.{number}: connection refused", why)
            for node in (forged, plain):
                with self.stub(node) as stub:
                    with self.assertRaises(grpc.RpcError) as caught:
                        self.expect_scores(stub, 0)
                    self.assertEqual(
                        caught.exception.code(), grpc.StatusCode.UNAVAILABLE
                    )
        self.assertEqual(load.failed, [])
        self.assertGreater(load.sent, 5)

    def test_cpu_nodes_refuse_gpu_nodes_that_they_do_not_know(self):
        named = self.hn(*self.flags("elsewhere"))
        for hn, why in (
            (self.hn(*self.flags("forged")),
             "the peer's certificate /CN=forged: unable to get local issuer"),
            (named, "/CN=elsewhere: IP address mismatch with 127.0.0.1"),
            (self.hn(), "the peer does not use TLS"),
        ):
            with self.subTest(why):
                cn = self.cn(hn, *self.flags("cn"))
                self.await_line(cn, f"cannot connect to {hn.address}", why)
        cn = self.cn(
            named, *self.flags("cn"), "--node-tls-name", "hn.example"
        )
        self.await_scores(cn)

    def test_certificates_change_while_requests_are_served(self):
        # First both ends trust the roots of the next certificates, too.
        both = (self.folder / "root.crt").read_text()
        both += (self.folder / "next-root.crt").read_text()
        for node in ("a", "b", "front"):
            (self.folder / f"{node}-roots.crt").write_text(both)
            self.certificates.install("cn" if node == "front" else "hn", node)
        hns = [self.hn(*self.flags(n, f"{n}-roots")) for n in ("a", "b")]
        cn = self.cn(*hns, *self.flags("front", "front-roots"), transport="tcp")
        self.await_scores(cn)
        with Load(self, cn) as load:
            (self.folder / "a.crt").write_text("nothing")

            def broken_is_logged():
                # A node looks at its files when a connection comes.
                self.assertEqual(self.shown_name(hns[0], "root", "cn"), "hn")
                return "a.crt" in hns[0].output()

            support.wait_until(broken_is_logged, "the broken file is logged")
            for node in ("a", "b", "front"):
                self.certificates.install("next", node)
            for hn in hns:
                support.wait_until(
                    lambda hn=hn: self.shown_name(hn, "next-root", "next") == "next",
                    "the new certificate is shown",
                )
            # Connections that come back use the new ones: old roots go.
            for node in ("a", "b", "front"):
                self.certificates.openssl(
                    "x509", "-in", "next-root.crt", "-out", f"{node}-aside.crt"
                )
                (self.folder / f"{node}-aside.crt").rename(
                    self.folder / f"{node}-roots.crt"
                )
            for i, name in ((0, "a"), (1, "b")):
                port = hns[i].port
                self.assertEqual(hns[i].stop(), 0)
                hns[i] = self.hn(*self.flags(name, f"{name}-roots"), port=port)
                # Before the other node stops.
                self.await_line(hns[i], "connected over tcp, certificate /CN=next")
        self.assertEqual(load.failed, [])
        self.assertGreater(load.sent, 10)

    def test_flags_and_files_that_do_not_fit_end_the_program(self):
        for name in ("refract-cpu-node", "refract-gpu-node"):
            for flags, words in (
                (self.flags("expired"), ["--node-tls-cert", "has expired"]),
                (self.flags("hn")[:2] + self.flags("cn")[2:],
                 ["--node-tls-key", "cn.key", "mismatch"]),
                (self.flags("hn", "nothing"), ["--node-tls-ca", "nothing.crt"]),
                (self.flags("hn")[:4], ["--node-tls-cert", "--node-tls-ca"]),
            ):
                done = support.start_once(
                    support.program(name), "--model-repository", self.repository,
                    *flags, check=False,
                )
                self.assertEqual(done.returncode, 2, done)
                for word in words:
                    self.assertIn(word, done.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
