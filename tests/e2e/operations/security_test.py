"""TLS, certificates that change, tokens, and where daemons listen."""

import contextlib
import json
import pathlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

from scripts.lib import nodes
from tests.e2e import support

try:
    import grpc
    import tritonclient.grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc
    from tritonclient.utils import InferenceServerException

    from python.refract.client import Client
    from tests.e2e.certificates import Certificates
    from tests.e2e.kserve_requests import request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")
if shutil.which("openssl") is None:
    raise unittest.SkipTest("the program openssl is missing")

CLIENT, CONTROL = "client-token-0123456789", "control-token-0123456789"


class Security(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-security-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.repository, cls.tensors = support.add_wide_deep(cls.folder)
        cls.certificates = Certificates(cls.folder)
        for root in ("root", "stranger"):
            cls.certificates.root(root)
        for name, root, days in (
            ("server", "root", 30), ("next", "root", 30), ("client", "root", 30),
            ("expired", "root", -1), ("forged", "stranger", 30),
        ):
            cls.certificates.issue(name, root, days)

    def install(self, name):
        self.certificates.install(name)

    def start(self, *arguments):
        cn = support.cpu_node(self.repository, [], *arguments)
        self.addCleanup(cn.close)
        return cn

    def start_tls(self, *arguments):
        self.install("server")
        return self.start(
            "--tls-cert", self.folder / "served.crt",
            "--tls-key", self.folder / "served.key", *arguments,
        )

    def context(self, client=None):
        context = ssl.create_default_context(cafile=self.folder / "root.crt")
        if client:
            context.load_cert_chain(
                self.folder / f"{client}.crt", self.folder / f"{client}.key"
            )
        return context

    @contextlib.contextmanager
    def stub(self, cn, client=None, root="root"):
        def read(name):
            return (self.folder / name).read_bytes()

        credentials = grpc.ssl_channel_credentials(
            read(f"{root}.crt"),
            read(f"{client}.key") if client else None,
            read(f"{client}.crt") if client else None,
        )
        with grpc.secure_channel(
            cn.address, credentials, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            yield service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def infer(self, stub, token=None):
        metadata = [("authorization", f"Bearer {token}")] if token else None
        return stub.ModelInfer(
            request_of("m", self.tensors), timeout=60, metadata=metadata
        )

    def get(self, cn, path, context=None, token=None, body=None):
        scheme = "https" if context else "http"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(
            f"{scheme}://127.0.0.1:{cn.http_port}{path}", headers=headers,
            data=body,
        )
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 401:
                    self.assertEqual(error.headers["WWW-Authenticate"], "Bearer")
                return error.code, error.read()

    def served_name(self, port):
        """The name in the certificate that a port shows."""
        with socket.create_connection(("127.0.0.1", port), 30) as plain:
            with self.context().wrap_socket(
                plain, server_hostname="localhost"
            ) as sock:
                return dict(x[0] for x in sock.getpeercert()["subject"])["commonName"]

    # --------------------------------------------------------------------- TLS

    def test_tls_and_certificates_that_change(self):
        cn = self.start_tls()
        self.assertEqual(self.get(cn, "/v2/models/m", self.context())[0], 200)
        with self.stub(cn) as stub, self.stub(cn, root="stranger") as stranger:
            expected = self.infer(stub).raw_output_contents
            with self.assertRaises(grpc.RpcError):
                self.infer(stranger)
            # Without TLS nothing is answered, and nobody else is disturbed.
            with self.assertRaises(Exception):
                self.get(cn, "/v2/models/m")
            with grpc.insecure_channel(cn.address) as channel:
                with self.assertRaises(grpc.RpcError):
                    self.infer(service_pb2_grpc.GRPCInferenceServiceStub(channel))
            # Broken files are logged; then good ones are served.
            ports = (cn.port, cn.http_port)
            self.assertEqual([self.served_name(p) for p in ports], ["server"] * 2)
            (self.folder / "served.crt").write_text("nothing")
            support.wait_until(
                lambda: self.served_name(cn.http_port) == "server"
                and "served.crt" in cn.output(),
                "the broken file is logged",
            )
            self.install("next")
            for port in ports:
                support.wait_until(
                    lambda port=port: self.served_name(port) == "next",
                    "the new certificate is served",
                )
            # The old connection goes on.
            self.assertEqual(self.infer(stub).raw_output_contents, expected)

    def test_clients_need_a_certificate(self):
        cn = self.start_tls("--tls-client-ca", self.folder / "root.crt")
        with self.stub(cn, "client") as stub:
            self.infer(stub)
        self.assertEqual(
            self.get(cn, "/v2/models/m", self.context("client"))[0], 200
        )
        for client, why in (
            (None, "peer did not return a certificate"),
            ("expired", "CN=expired: certificate has expired"),
            ("forged", "CN=forged: unable to get local issuer certificate"),
        ):
            with self.subTest(client):
                with self.stub(cn, client) as stub:
                    with self.assertRaises(grpc.RpcError) as caught:
                        self.infer(stub)
                    self.assertEqual(
                        caught.exception.code(), grpc.StatusCode.UNAVAILABLE
                    )
                support.wait_until(
                    lambda why=why: any(
                        "gRPC" in line and why in line
                        for line in cn.output().splitlines()
                    ),
                    f"the line of gRPC says: {why}",
                )

                def logged(client=client, why=why):
                    # A line a second, so that it may have to fail again.
                    with contextlib.suppress(OSError):
                        self.get(cn, "/v2", self.context(client))
                    return why in cn.output()

                with self.assertRaises(OSError):
                    self.get(cn, "/v2", self.context(client))
                support.wait_until(logged, why)
        self.assertEqual(
            self.get(cn, "/v2/models/m", self.context("client"))[0], 200
        )

    def test_the_python_client_shows_certificate_and_token(self):
        (self.folder / "clients").write_text(CLIENT + "\n")
        cn = self.start_tls(
            "--tls-client-ca", self.folder / "root.crt",
            "--client-tokens", self.folder / "clients",
        )
        def names(end):
            return str(self.folder / f"client.{end}")

        tls = {"certificates": str(self.folder / "root.crt")}
        own = {**tls, "certificate": names("crt"), "key": names("key")}
        for options, code in (
            ({**own, "token": CLIENT}, None),
            ({**own, "token": CLIENT + "x"}, "UNAUTHENTICATED"),
            (own, "UNAUTHENTICATED"),
            ({**tls, "token": CLIENT}, "UNAVAILABLE"),
        ):
            with self.subTest(code), Client(cn.address, **options) as client:
                if code is None:
                    self.assertEqual(client.infer("m", self.tensors).version, "1")
                    continue
                with self.assertRaises(InferenceServerException) as caught:
                    client.infer("m", self.tensors, deadline=30)
                self.assertIn(code, caught.exception.status())

    def test_files_that_do_not_fit_end_the_program(self):
        for certificate, key, words in (
            ("server.crt", "next.key", ["next.key", "mismatch"]),
            ("expired.crt", "expired.key", ["expired.crt", "has expired"]),
            ("names", "server.key", ["names"]),
            ("missing", "server.key", ["missing"]),
        ):
            done = support.start_once(
                support.program("refract-cpu-node"), "--model-repository",
                self.repository, "--tls-cert", self.folder / certificate,
                "--tls-key", self.folder / key, check=False,
            )
            self.assertEqual(done.returncode, 2, done)
            for word in words:
                self.assertIn(word, done.stderr.splitlines()[-1])

    # ------------------------------------------------------------------ tokens

    def test_tokens(self):
        for name, token in (("clients", CLIENT), ("control", CONTROL)):
            (self.folder / name).write_text(token + "\n")
        cn = self.start(
            "--client-tokens", self.folder / "clients",
            "--control-tokens", self.folder / "control",
            "--model-control-mode", "explicit", "--load-model", "*",
        )
        infer = json.dumps({"inputs": []}).encode()
        unload = "/v2/repository/models/m/unload"
        for path, body, token, status in (
            ("/v2/health/live", None, None, 200),
            ("/v2/models/m/ready", None, None, 200),
            ("/v2/models/m", None, None, 401),
            ("/v2/models/m", None, CLIENT + "x", 401),
            ("/v2/models/m", None, CLIENT, 200),
            ("/v2/models/m", None, CONTROL, 200),
            ("/v2/models/m/infer", infer, None, 401),
            ("/v2/models/m/infer", infer, CLIENT, 400),
            ("/v2/nothing", None, None, 401),
            ("/v2/nothing", None, CLIENT, 404),
            ("/v2/trace/setting", None, CLIENT, 200),
            ("/v2/trace/setting", b"{}", CLIENT, 403),
            (unload, b"", None, 401),
            (unload, b"", CLIENT, 403),
        ):
            with self.subTest(path, token=token):
                self.assertEqual(self.get(cn, path, None, token, body)[0], status)
        with grpc.insecure_channel(cn.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            health.Check(health_pb2.HealthCheckRequest(), timeout=60)
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            self.assertTrue(
                stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=60).live
            )
            self.infer(stub, CLIENT)
            for token in (None, CLIENT + "x"):
                with self.assertRaises(grpc.RpcError) as caught:
                    self.infer(stub, token)
                self.assertEqual(
                    caught.exception.code(), grpc.StatusCode.UNAUTHENTICATED
                )
                with self.assertRaises(grpc.RpcError) as caught:
                    stub.RepositoryIndex(service_pb2.RepositoryIndexRequest())
                self.assertEqual(
                    caught.exception.code(), grpc.StatusCode.UNAUTHENTICATED
                )
        with tritonclient.grpc.InferenceServerClient(cn.address) as client:
            with self.assertRaisesRegex(Exception, "PERMISSION_DENIED"):
                client.unload_model(
                    "m", headers={"authorization": f"Bearer {CLIENT}"}
                )
            client.unload_model(
                "m", headers={"authorization": f"Bearer {CONTROL}"}
            )
        self.assertEqual(self.get(cn, "/v2/models/m/ready")[0], 400)

    def test_a_quota_bounds_its_client_alone(self):
        (self.folder / "clients").write_text(
            f"{CLIENT} name=shop rate=3\n{CONTROL} name=batch in-flight=64\n"
        )
        cn = self.start("--client-tokens", self.folder / "clients")
        infer = json.dumps({"inputs": []}).encode()
        path = "/v2/models/m/infer"
        with grpc.insecure_channel(cn.address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            answers = []
            for _ in range(30):
                try:
                    self.infer(stub, CLIENT)
                    answers.append("OK")
                except grpc.RpcError as error:
                    self.assertIn("client 'shop' sends more", error.details())
                    answers.append(error.code().name)
                self.infer(stub, CONTROL)
            self.assertEqual(answers[:3], ["OK"] * 3)
            self.assertIn("RESOURCE_EXHAUSTED", answers)
        statuses = [self.get(cn, path, None, CLIENT, infer)[0] for _ in range(6)]
        self.assertIn(429, statuses)
        self.assertEqual(self.get(cn, path, None, CONTROL, infer)[0], 400)
        with urllib.request.urlopen(cn.metrics_url) as answer:
            metrics = answer.read().decode()
        refused = answers.count("RESOURCE_EXHAUSTED") + statuses.count(429)
        self.assertIn(f'refract_client_refused_total{{client="shop"}} {refused}', metrics)
        self.assertIn('refract_client_requests_total{client="batch"} 31', metrics)
        self.assertIn('refract_client_in_flight{client="batch"} 0', metrics)

    # --------------------------------------------------------------- addresses

    def test_daemons_listen_on_this_machine_alone(self):
        for name, arguments, flags in (
            ("refract-cpu-node", ("--grpc-port", 0, "--http-port", 0),
             ("--host", "--http-host")),
            ("refract-gpu-node", ("--port", 0), ("--host",)),
        ):
            node = nodes.Node(
                name, "--model-repository", self.repository, "--metrics-port",
                "off", *arguments,
            )
            self.addCleanup(node.close)
            self.assertTrue(node.address.startswith("127.0.0.1:"), node.address)
            for flag in flags:
                # The address is known before the daemon logs this line.
                told = f"for this machine alone ({flag} 0.0.0.0"
                nodes.wait_until(lambda: told in node.output(), told)
            listening = subprocess.run(
                ["cat", f"/proc/{node.process.pid}/net/tcp"],
                capture_output=True, text=True, check=True,
            ).stdout
            port = f"{node.port:04X}"
            found = [
                line.split()[1] for line in listening.splitlines()
                if f":{port} " in line and " 0A " in line
            ]
            self.assertEqual(found, [f"0100007F:{port}"])


if __name__ == "__main__":
    unittest.main()
