"""What clients can make a CPU node hold is bounded: bytes, connections, log."""

import concurrent.futures
import contextlib
import fcntl
import os
import pathlib
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import unittest.mock

from scripts.lib import nodes
from tests.e2e import raw_http2, support

try:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    from tests.e2e.kserve_requests import request_of
except ImportError as error:
    raise unittest.SkipTest(f"tritonclient[grpc] is missing: {error}")

MIB = 1 << 20
MODEL = b"\x0a\x01m"  # field 1 of ModelInferRequest
INPUTS = b"\x2a"  # field 5, an input
RAW = b"\x3a"  # field 7, raw_input_contents


def varint(number):
    out = b""
    while number >= 128:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


class Limits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-limits-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.repository, cls.tensors = support.add_wide_deep(cls.folder)

    def start(self, *arguments, **options):
        if "--http-port" not in arguments:
            arguments += ("--http-port", 0)
        cn = nodes.Node(
            "refract-cpu-node", "--model-repository", self.repository,
            "--grpc-host", "127.0.0.1", "--grpc-port", 0, "--metrics-port", 0,
            *arguments, **options,
        )
        self.addCleanup(cn.close)
        return cn

    def stub(self, cn):
        # A connection of its own each time.
        channel = grpc.insecure_channel(
            cn.address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.addCleanup(channel.close)
        return service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def infer(self, cn, request=None, timeout=60):
        return self.stub(cn).ModelInfer(
            request or request_of("m", self.tensors), timeout=timeout
        )

    def bytes_call(self, cn, message, **arguments):
        """The RpcError of a ModelInfer call with these bytes."""
        with grpc.insecure_channel(cn.address) as channel:
            call = channel.unary_unary(
                raw_http2.INFER, request_serializer=lambda data: data
            )
            with self.assertRaises(grpc.RpcError) as caught:
                call(message, timeout=60, **arguments)
        return caught.exception

    def peak_mib(self, cn):
        status = pathlib.Path(f"/proc/{cn.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def refused(self, error, code, *words):
        self.assertEqual(error.code(), code, error.details())
        for word in words:
            self.assertIn(word, error.details())

    # ------------------------------------------------------------------ memory

    def test_unfinished_messages_hold_no_more_than_the_quota(self):
        cn = self.start("--request-memory", "256MiB")
        before = self.peak_mib(cn)
        streams, length = range(1, 129, 2), 60 * MIB
        connection = raw_http2.Connection(cn.port)
        self.addCleanup(connection.close)
        connection.poll(1)
        self.assertEqual(connection.settings[3], 1024)  # streams at a time
        left = {}
        for stream in streams:
            connection.call(stream)
            left[stream] = length
            # A length of one byte more than the test sends.
            prefix = struct.pack("!BI", 0, length + 1)
            self.assertEqual(connection.send_some(stream, prefix), len(prefix))
        zeros = memoryview(bytes(MIB))
        idle = time.monotonic()
        while any(left.values()) and time.monotonic() < idle + 3:
            for stream in streams:
                if stream in connection.ended:
                    left[stream] = 0
                sent = connection.send_some(stream, zeros[: left[stream]])
                left[stream] -= sent
                if sent > 0:
                    idle = time.monotonic()
            connection.poll(0.01)
            if connection.closed:
                break
        # 3.8 GiB without a quota. Of the 128 MiB for messages that arrive gRPC
        # may be over by what it had asked for before.
        self.assertLess(self.peak_mib(cn) - before, 300)
        # Other clients are served meanwhile; this client's memory comes back.
        self.infer(cn)
        connection.close()
        for _ in range(3):
            self.infer(cn)

    def test_gzip_is_bounded_by_what_it_becomes(self):
        cn = self.start()
        # Compressed messages are read at all.
        request = request_of("m", self.tensors)
        expected = self.infer(cn).raw_output_contents
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            answer = self.stub(cn).ModelInfer(
                request, timeout=60, compression=compression
            )
            self.assertEqual(answer.raw_output_contents, expected)
        before = self.peak_mib(cn)
        zeros = 400 * MIB
        error = self.bytes_call(
            cn, MODEL + RAW + varint(zeros) + bytes(zeros),
            compression=grpc.Compression.Gzip,
        )
        self.refused(
            error, grpc.StatusCode.RESOURCE_EXHAUSTED, "once decompressed"
        )
        self.assertLess(self.peak_mib(cn) - before, 50)
        self.infer(cn)

    def test_counts_are_checked_before_decoding(self):
        cn = self.start()
        before = self.peak_mib(cn)
        error = self.bytes_call(cn, MODEL + (INPUTS + b"\0") * (8 * MIB))
        self.refused(
            error, grpc.StatusCode.INVALID_ARGUMENT, "16384 inputs"
        )
        # The message itself, and not 1.8 GiB.
        self.assertLess(self.peak_mib(cn) - before, 60)
        self.infer(cn)

    def test_the_budget_refuses_and_names_its_flag(self):
        cn = self.start("--request-memory", "64MiB", "--http-port", "off")
        request = request_of("m", self.tensors)
        request.raw_input_contents[0] = bytes(20 * MIB)
        with self.assertRaises(grpc.RpcError) as caught:
            self.infer(cn, request)
        self.refused(
            caught.exception, grpc.StatusCode.RESOURCE_EXHAUSTED,
            "--request-memory",
        )
        # The model refuses a request that fits, again and again: each call
        # gives its memory back.
        request.raw_input_contents[0] = bytes(10 * MIB)
        for _ in range(10):
            with self.assertRaises(grpc.RpcError) as caught:
                self.infer(cn, request)
            self.refused(
                caught.exception, grpc.StatusCode.INVALID_ARGUMENT, "raw bytes"
            )
        self.infer(cn)

    def test_a_message_beyond_the_memory_is_refused_with_the_limit(self):
        # HTTP's bodies have half of the memory for what is being received.
        for arguments, quota in (((), 16), (("--http-port", "off"), 32)):
            cn = self.start("--request-memory", "64MiB", *arguments)
            request = request_of("m", self.tensors)
            limit = quota * MIB * 3 // 4
            # Beyond 7/8 of the quota gRPC refuses, beyond all of it it resets.
            for size in (limit, limit + limit // 16):
                request.raw_input_contents[0] = bytes(size)
                for _ in range(3):
                    with self.assertRaises(grpc.RpcError) as caught:
                        self.infer(cn, request)
                    self.refused(
                        caught.exception, grpc.StatusCode.RESOURCE_EXHAUSTED,
                        str(limit), "--request-memory",
                    )
            # Shorter ones are read.
            request.raw_input_contents[0] = bytes(limit - 100_000)
            with self.assertRaises(grpc.RpcError) as caught:
                self.infer(cn, request)
            self.assertRegex(
                caught.exception.details(), "raw bytes|no memory for the request"
            )
            self.infer(cn)
            cn.await_log(f"may have {limit} bytes")

    def test_a_wrong_size_on_the_command_line(self):
        for size in ("12Apples", "-1", "0", "1KiB"):
            done = support.start_once(
                support.program("refract-cpu-node"), "--model-repository",
                self.repository, "--request-memory", size, check=False,
            )
            self.assertEqual(done.returncode, 2, done)
            self.assertIn("--request-memory", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    # ------------------------------------------------------------- connections

    def start_with_descriptors(self, limit):
        return self.start(
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        )

    def test_idle_connections_do_not_lock_clients_out(self):
        cn = self.start_with_descriptors(256)
        with contextlib.ExitStack() as idle:
            for _ in range(320):
                idle.enter_context(
                    socket.create_connection(("127.0.0.1", cn.port), 10)
                )
            # These connections never speak. Once their time is over, a client has room.
            support.wait_until(
                lambda: self.infer(cn), "a client is served", timeout=40
            )
        self.infer(cn)

    def test_connections_of_one_host_leave_room_for_other_hosts(self):
        cn = self.start_with_descriptors(256)
        with contextlib.ExitStack() as held:
            for _ in range(320):
                connection = held.enter_context(
                    socket.create_connection(
                        ("127.0.0.1", cn.port), 10, source_address=("127.0.0.2", 0)
                    )
                )
                # HTTP/2's preface and empty settings: no longer silent.
                with contextlib.suppress(OSError):
                    connection.sendall(
                        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4] + [0] * 5)
                    )
            self.infer(cn)
            cn.await_log("127.0.0.2 holds")

    def test_a_timeout_of_centuries(self):
        cn = self.start()
        payload = request_of("m", self.tensors).SerializeToString()
        connection = raw_http2.Connection(cn.port)
        self.addCleanup(connection.close)
        connection.poll(1)
        for stream, timeout in ((1, "5000000H"), (3, "99999999H"), (5, "9S")):
            connection.call(stream, grpc_timeout=timeout)
            connection.finish(stream, raw_http2.message(payload))
            self.assertTrue(connection.await_end(stream))
            # An error has no message.
            self.assertGreater(len(connection.data.get(stream, b"")), 5, timeout)

    # -------------------------------------------------------- text and the log

    def test_long_text_gives_the_right_status(self):
        cn = self.start()
        long = "n" * 100_000
        cases = {}

        def case(name):
            cases[name] = request_of("m", self.tensors)
            return cases[name]

        case("input").inputs[0].name = long
        case("datatype").inputs[0].datatype = long
        case("output").outputs.add(name=long)
        case("shape").inputs[0].shape[:] = [1] * 10_000
        case("huge dimensions").inputs[0].shape[:] = [-(2**62)] * 64
        case("parameter").outputs.add(name=long).parameters[
            "classification"
        ].int64_param = 1
        for name, request in cases.items():
            with self.subTest(name), self.assertRaises(grpc.RpcError) as caught:
                self.infer(cn, request)
            self.refused(
                caught.exception, grpc.StatusCode.INVALID_ARGUMENT,
                "datatype" if name == "datatype" else "put"
            )
            self.assertLess(len(caught.exception.details()), 2100)
        request = case("model")
        request.model_name = long
        with self.assertRaises(grpc.RpcError) as caught:
            self.infer(cn, request)
        self.refused(caught.exception, grpc.StatusCode.NOT_FOUND, "unknown")
        for line in cn.output().splitlines():
            self.assertLess(len(line), 4100)

    def test_a_log_that_nobody_reads(self):
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        process = subprocess.Popen(
            [
                support.program("refract-cpu-node"), "--model-repository",
                self.repository, "--grpc-host", "127.0.0.1",
                "--grpc-port", "0", "--lame-duck", "0",
            ],
            stdout=subprocess.PIPE, stderr=writing, text=True,
        )
        os.close(writing)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        line = process.stdout.readline()
        address = line.split()[-1]
        channel = grpc.insecure_channel(address)
        self.addCleanup(channel.close)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        bad = request_of("m", self.tensors)
        bad.model_name = "n" * 3000
        for _ in range(20):  # 60 kB of log
            with self.assertRaises(grpc.RpcError) as caught:
                stub.ModelInfer(bad, timeout=20)
            self.refused(caught.exception, grpc.StatusCode.NOT_FOUND)
        stub.ModelInfer(request_of("m", self.tensors), timeout=20)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), 0)

    # --------------------------------------------------------------- GPU nodes

    def split_repository(self):
        repository = self.folder / "split"
        if not repository.exists():
            support.add_model(
                repository, "m", self.folder / "wide_deep" / "wide_deep.pt2"
            )
        return repository

    def test_a_gpu_node_refuses_payloads_beyond_its_budget(self):
        repository = self.split_repository()
        hn = support.gpu_node(repository, "--request-memory", "1MiB")
        self.addCleanup(hn.close)
        cn = support.cpu_node(repository, [hn.address])
        self.addCleanup(cn.close)
        support.wait_until(lambda: self.infer(cn), "the CN serves")
        large = request_of(
            "m",
            support.make_inputs(
                self.folder / "wide_deep" / "wide_deep.json", 20_000, 7
            ),
        )
        with self.assertRaises(grpc.RpcError) as caught:
            # Predicted from one small request, which was slow on a busy machine.
            self.infer(cn, large, timeout=3600)
        self.refused(
            caught.exception, grpc.StatusCode.RESOURCE_EXHAUSTED,
            "--request-memory", hn.address,
        )
        self.infer(cn)

    def test_a_gpu_node_that_stops_costs_no_request(self):
        repository = self.split_repository()
        hns = [
            support.gpu_node(repository, "--lame-duck", 1) for _ in range(2)
        ]
        for hn in hns:
            self.addCleanup(hn.close)
        cn = support.cpu_node(repository, [hn.address for hn in hns])
        self.addCleanup(cn.close)
        support.wait_until(lambda: self.infer(cn), "the CN serves")
        stop = threading.Event()

        def drive():
            stub = self.stub(cn)
            served = 0
            while not stop.is_set():
                stub.ModelInfer(request_of("m", self.tensors), timeout=60)
                served += 1
            return served

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            clients = [pool.submit(drive) for _ in range(4)]
            time.sleep(0.5)
            try:
                self.assertEqual(hns[0].stop(), 0)
            finally:
                stop.set()
            for client in clients:
                self.assertGreater(client.result(), 0)

    # --------------------------------------------------------------- shutdown

    def test_lame_duck(self):
        # A unit of Type=notify with a watchdog, as systemd starts it.
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        manager.settimeout(60)
        name = f"refract-limits-{os.getpid()}"
        manager.bind("\0" + name)
        told = {"NOTIFY_SOCKET": "@" + name, "WATCHDOG_USEC": "200000"}
        with unittest.mock.patch.dict(os.environ, told):
            cn = self.start("--lame-duck", 3)
        self.assertEqual(manager.recv(256), b"READY=1")
        self.assertEqual(manager.recv(256), b"WATCHDOG=1")
        stub = self.stub(cn)
        request = service_pb2.ServerReadyRequest()
        self.assertTrue(stub.ServerReady(request, timeout=20).ready)
        cn.process.send_signal(signal.SIGTERM)
        support.wait_until(
            lambda: not stub.ServerReady(request, timeout=20).ready, "not ready"
        )
        self.assertFalse(
            stub.ModelReady(
                service_pb2.ModelReadyRequest(name="m"), timeout=20
            ).ready
        )
        begin = time.monotonic()
        served = 0
        with self.assertRaises(grpc.RpcError) as caught:
            while True:
                stub.ModelInfer(request_of("m", self.tensors), timeout=20)
                served += 1
        self.assertEqual(
            caught.exception.code(), grpc.StatusCode.UNAVAILABLE
        )
        self.assertGreater(time.monotonic() - begin, 1)
        self.assertGreater(served, 10)
        self.assertEqual(cn.stop(), 0)
        heard = manager.recv(256)
        while heard == b"WATCHDOG=1":
            heard = manager.recv(256)
        self.assertTrue(heard.startswith(b"STOPPING=1\n"), heard)

    def test_a_second_signal_ends_the_lame_duck_time(self):
        cn = self.start("--lame-duck", 3600)
        cn.process.send_signal(signal.SIGTERM)
        support.wait_until(
            lambda: not self.stub(cn)
            .ServerReady(service_pb2.ServerReadyRequest(), timeout=20)
            .ready,
            "not ready",
        )
        self.infer(cn)
        self.assertEqual(cn.stop(), 0)


if __name__ == "__main__":
    unittest.main()
