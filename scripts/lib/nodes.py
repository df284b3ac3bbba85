"""The programs as processes; needs nothing but Python's own library.

Environment: REFRACT_BUILD_DIR (the build tree; its bin/ holds the programs) and
REFRACT_SOURCE_DIR, both set by ctest; REFRACT_START_TIMEOUT_S; REFRACT_TEST_GPU=N
has GPU nodes compute on GPU N unless a test names a device.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time

from scripts.lib import fork_server

SOURCE = pathlib.Path(
    os.environ.get(
        "REFRACT_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]
    )
)
BUILD = pathlib.Path(
    os.environ.get("REFRACT_BUILD_DIR", SOURCE / "build" / "release")
)
# The GPU that GPU nodes compute on; None: the CPU.
GPU = os.environ.get("REFRACT_TEST_GPU") or None
# Generous: sanitizers and two busy cores. Nothing waits this long in a pass.
START_TIMEOUT_S = float(os.environ.get("REFRACT_START_TIMEOUT_S", "60"))


def program(name):
    path = BUILD / "bin" / name
    if not path.exists():
        raise FileNotFoundError(f"{name} is not built in {BUILD}")
    return str(path)


class Node:
    """A daemon: started, its port read from its first line, its log kept.

    preexec_fn: as of subprocess.Popen; tests fork a daemon without it from one that
    has started (fork_server.py).
    """

    def __init__(self, name, *arguments, preexec_fn=None):
        self.name = name
        self.arguments = [str(part) for part in arguments]
        self.log = tempfile.TemporaryFile()
        command = [program(name), *self.arguments]
        server = None
        if preexec_fn is None:
            server = fork_server.server(command[0], os.getcwd())
        if server is None:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=self.log, text=True,
                preexec_fn=preexec_fn,
            )  # fmt: skip
        else:
            self.process = server.popen(command, self.log)
        self.address = None
        self.http_address = None  # printed before that of metrics
        self._metrics_url = None
        self._metrics_ready = threading.Event()
        ready = threading.Event()

        def read():
            for line in self.process.stdout:
                found = re.search(r"HTTP on (\S+:\d+)", line)
                if found:
                    self.http_address = found.group(1)
                found = re.search(r"metrics on (http://\S+)", line)
                if found:
                    self._metrics_url = found.group(1)
                    self._metrics_ready.set()
                found = re.search(r"listening on (\S+:\d+)", line)
                if found and self.address is None:
                    self.address = found.group(1).replace(
                        "0.0.0.0", "127.0.0.1"
                    )
                    ready.set()
            ready.set()
            self._metrics_ready.set()

        threading.Thread(target=read, daemon=True).start()
        ready.wait(START_TIMEOUT_S)
        if self.address is None:
            self.kill()
            raise AssertionError(f"{name} did not start:\n{self.output()}")

    @property
    def metrics_url(self):
        """None: the node serves no metrics."""
        pairs = zip(self.arguments, self.arguments[1:])
        if ("--metrics-port", "off") not in pairs:
            self._metrics_ready.wait(START_TIMEOUT_S)
        return self._metrics_url

    @property
    def http_port(self):
        """Of a CPU node with metrics and HTTP."""
        self._metrics_ready.wait(START_TIMEOUT_S)
        return int(self.http_address.rpartition(":")[2])

    @property
    def port(self):
        return int(self.address.rpartition(":")[2])

    def output(self):
        # Without seek(): the node writes at the offset that it shares with this process.
        log = self.log.fileno()
        return os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")

    def await_log(self, text):
        """Waits until the log has `text`, a string or a compiled pattern: a node
        writes its log in a thread of its own, after it has answered."""
        pattern = text if isinstance(text, re.Pattern) else re.compile(re.escape(text))
        wait_until(
            lambda: pattern.search(self.output()), f"{pattern.pattern!r} is logged"
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def kill(self):
        """kill -9."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def close(self):
        """kill -9, and no more output()."""
        self.kill()
        self.log.close()

    def stop(self, timeout=60):
        """SIGTERM; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(
                f"{self.name} did not stop in {timeout} s:\n{self.output()}"
            )
        finally:
            self.process.stdout.close()
        return status


def for_tests(arguments):
    """Tests do not wait for balancers and share no ports, unless they say so."""
    if "--lame-duck" not in arguments:
        arguments = ("--lame-duck", 0, *arguments)
    if "--metrics-port" not in arguments:
        arguments = ("--metrics-port", 0, *arguments)
    return arguments


def gpu_node(repository, *arguments, port=0):
    if GPU and "--device" not in arguments:
        arguments += ("--device", f"cuda:{GPU}")
    return Node(
        "refract-gpu-node", "--model-repository", repository,
        "--host", "127.0.0.1", "--port", port, *for_tests(arguments),
    )


def cpu_node(repository, gpu_nodes, *arguments, program="refract-cpu-node"):
    """`program`: a name in the build tree, or an absolute path."""
    if "--http-port" not in arguments:
        arguments += ("--http-port", 0)
    return Node(
        program, "--model-repository", repository,
        *(("--gpu-nodes", ",".join(gpu_nodes)) if gpu_nodes else ()),
        "--grpc-host", "127.0.0.1", "--grpc-port", 0,
        *for_tests(arguments),
    )


def wait_until(condition, what, timeout=START_TIMEOUT_S):
    """Polls a condition that another process brings about."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            if condition():
                return
        time.sleep(0.02)
    raise AssertionError(f"still not so after {timeout} s: {what}")
