"""How both daemons start: names of their options, log, ports that are taken,
versions that cannot be loaded."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

import torch

from scripts.lib import nodes
from tests.e2e import support

# (program, arguments that make it listen on one free port alone)
DAEMONS = (
    ("refract-gpu-node", ("--metrics-port", "off", "--lame-duck", "0")),
    (
        "refract-cpu-node",
        ("--metrics-port", "off", "--http-port", "off", "--lame-duck", "0"),
    ),
)


class Start(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="refract_start_")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.repository = cls.folder / "good"
        batch = torch.export.Dim("batch")
        program = torch.export.export(
            torch.nn.Linear(2, 1), (torch.randn(3, 2),), dynamic_shapes=({0: batch},)
        )
        torch.export.save(program, cls.folder / "m.pt2")
        for name in ("a", "b"):
            support.refract(
                "import", cls.folder / "m.pt2", "--repo", cls.repository,
                "--name", name, "--no-golden",
            )
            support.refract(
                "partition", cls.repository / name, "--method", "all-hn", "--write"
            )
        cls.broken = cls.folder / "broken"
        shutil.copytree(cls.repository, cls.broken)
        with open(cls.broken / "a/1/graph.pb", "r+b") as file:
            file.truncate(10)

    def ends(self, program, *arguments):
        """Runs a daemon that ends by itself: (status, stderr)."""
        done = support.start_once(support.program(program), *arguments, check=False)
        return done.returncode, done.stderr

    def start(self, program, *arguments):
        node = nodes.Node(program, *arguments)
        self.addCleanup(node.close)
        return node

    def test_options_have_the_same_names(self):
        for program, arguments in DAEMONS:
            node = self.start(
                program, "--model-repository", self.repository, "--host",
                "127.0.0.1", "--port", 0, *arguments,
            )
            self.assertTrue(node.address.startswith("127.0.0.1:"))
            self.assertEqual(node.stop(), 0)
        # Triton's name and the one of before.
        for host, port in (
            ("--grpc-address", "--grpc-port"), ("--grpc-host", "--grpc-port"),
        ):
            node = self.start(
                "refract-cpu-node", "--model-repository", self.repository, host,
                "127.0.0.1", port, 0, *DAEMONS[1][1],
            )
            self.assertEqual(node.stop(), 0)

    def test_a_port_that_is_taken_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            for program, arguments in DAEMONS:
                status, errors = self.ends(
                    program, "--model-repository", self.repository, "--port", port,
                    *arguments,
                )
                self.assertEqual(status, 1)
                last = errors.splitlines()[-1]
                self.assertIn(
                    f"cannot listen on 127.0.0.1:{port}: Address already in use; "
                    "--port chooses another port",
                    last,
                )
                self.assertEqual(last.count("cannot listen"), 1, last)
            for program, flag, others in (
                ("refract-cpu-node", "--http-port", ("--metrics-port", "off")),
                ("refract-cpu-node", "--metrics-port", ("--http-port", "off")),
                ("refract-gpu-node", "--metrics-port", ()),
            ):
                status, errors = self.ends(
                    program, "--model-repository", self.repository, "--port", 0,
                    flag, port, *others,
                )
                self.assertEqual(status, 1)
                self.assertIn(
                    f"cannot listen on 127.0.0.1:{port}: Address already in use; "
                    f"{flag} chooses another port",
                    errors.splitlines()[-1],
                )
            status, errors = self.ends(
                "refract-cpu-node", "--model-repository", self.repository, "--port",
                0, "--http-port", "off", "--metrics-port", "off", "--shard", 0,
                "--shard-peers", f"127.0.0.1:{port},127.0.0.1:1",
            )
            self.assertEqual(status, 1)
            self.assertIn(
                f"--shard-peers: cannot listen on 127.0.0.1:{port}",
                errors.splitlines()[-1],
            )

    def test_an_address_of_no_port_is_named(self):
        # No name of a host, and an address for documentation (RFC 5737).
        for host, why in (
            ("300.1.1.1", "not known|no name of a host"),
            ("192.0.2.1", "Cannot assign requested address"),
        ):
            for program, flag in (
                ("refract-cpu-node", "--host"), ("refract-cpu-node", "--http-host"),
                ("refract-cpu-node", "--metrics-host"), ("refract-gpu-node", "--host"),
                ("refract-gpu-node", "--metrics-host"),
            ):
                status, errors = self.ends(
                    program, "--model-repository", self.repository, "--port", 0, flag, host,
                )
                last = errors.splitlines()[-1]
                self.assertEqual(status, 2, last)
                self.assertRegex(last, rf"{host}.*({why})")
                self.assertNotIn("chooses another port", last)

    def test_addresses_are_written_as_clients_take_them(self):
        hosts = {"localhost": "localhost"}
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
            hosts |= {"::1": "[::1]", "[::1]": "[::1]"}
        except OSError:
            pass  # a machine without IPv6
        for program, _ in DAEMONS:
            for host, shown in hosts.items():
                http = ("--http-host", host, "--http-port", 0) if "cpu" in program else ()
                node = self.start(
                    program, "--model-repository", self.repository, "--host", host,
                    "--port", 0, "--metrics-host", host, "--metrics-port", 0, *http,
                    "--lame-duck", 0,
                )
                at, _, port = node.address.rpartition(":")
                self.assertEqual(at, shown)
                with socket.create_connection((at.strip("[]"), int(port)), timeout=10):
                    pass
                self.assertEqual(node.stop(), 0)
        # As the variable of a script that is not set: not all addresses.
        status, error = self.ends(
            "refract-gpu-node", "--model-repository", self.repository, "--host", "",
            "--port", 0, "--metrics-port", "off",
        )
        self.assertEqual(status, 2)
        self.assertIn("--host: the address is empty", error)

    def test_log_lines_are_objects(self):
        for program, arguments in DAEMONS:
            node = self.start(
                program, "--model-repository", self.broken, "--port", 0,
                "--log-format", "json", *arguments,
            )
            self.assertEqual(node.stop(), 0)
            lines = [json.loads(line) for line in node.output().splitlines()]
            self.assertTrue(any(line["level"] == "info" for line in lines))
            errors = [line for line in lines if line["level"] == "error"]
            self.assertEqual(len(errors), 1, errors)
            self.assertIn("model 'a' version 1 is left out", errors[0]["message"])
            self.assertRegex(errors[0]["source"], r"^\w+\.cc:\d+$")
            # The error that ends a daemon is an object, too.
            status, text = self.ends(
                program, "--model-repository", self.folder / "absent",
                "--log-format", "json", *arguments,
            )
            self.assertEqual(status, 2)
            last = json.loads(text.splitlines()[-1])
            self.assertEqual((last["level"], last["source"]), ("error", program))
            self.assertIn("absent", last["message"])

    def test_log_level(self):
        for program, arguments in DAEMONS:
            node = self.start(
                program, "--model-repository", self.broken, "--port", 0,
                "--log-level", "error", *arguments,
            )
            self.assertEqual(node.stop(), 0)
            self.assertEqual(
                [line[:1] for line in node.output().splitlines()], ["E"]
            )

    def test_exit_on_error(self):
        for program, arguments in DAEMONS:
            status, errors = self.ends(
                program, "--model-repository", self.broken, "--port", 0,
                "--exit-on-error", *arguments,
            )
            self.assertEqual(status, 2, errors)
            self.assertRegex(
                errors.splitlines()[-1],
                r"--exit-on-error: model 'a' version 1: .*graph\.pb",
            )
            node = self.start(
                program, "--model-repository", self.repository, "--port", 0,
                "--exit-on-error", *arguments,
            )
            self.assertEqual(node.stop(), 0)

    def test_a_signal_ends_a_node_that_still_loads(self):
        loading = self.folder / "loading"
        shutil.copytree(self.repository, loading)
        (loading / "b/config.pbtxt").unlink()
        os.mkfifo(loading / "b/config.pbtxt")
        for program, arguments in DAEMONS:
            log = self.enterContext(tempfile.TemporaryFile("w+"))
            node = subprocess.Popen(
                [
                    support.program(program), "--model-repository", loading, "--port", "0",
                    *arguments,
                ],
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
            self.addCleanup(node.wait)
            self.addCleanup(node.kill)
            # Opens once the node reads the other end, which has no data.
            with open(loading / "b/config.pbtxt", "w"):
                node.send_signal(signal.SIGTERM)
                self.assertEqual(node.wait(60), 0)
            log.seek(0)
            self.assertIn("signal 15 before the node serves", log.read())

    def test_strict_readiness(self):
        def ready(*arguments):
            node = self.start(
                "refract-cpu-node", "--model-repository", self.broken, "--port", 0,
                "--http-port", 0, "--metrics-port", "off", "--lame-duck", 0,
                "--local-fallback", *arguments,
            )
            support.wait_until(lambda: node.http_address, "HTTP is served")
            try:
                urllib.request.urlopen(
                    f"http://{node.http_address}/v2/health/ready", timeout=60
                )
                return True
            except urllib.error.HTTPError as error:
                self.assertEqual(error.code, 400)
                return False
            finally:
                node.stop()

        self.assertTrue(ready())
        self.assertFalse(ready("--strict-readiness"))


if __name__ == "__main__":
    unittest.main()
