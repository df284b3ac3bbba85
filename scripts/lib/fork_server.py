"""Calls of a program that starts once: the other side of tests/fork_server.cc, which
says why and how. Tests call `refract` this way, where REFRACT_FORK_SERVER names the
library to preload (ctest sets it).
"""

import array
import contextlib
import os
import signal
import socket
import struct
import subprocess
import threading

LIBRARY = "REFRACT_FORK_SERVER"
_servers = {}
_lock = threading.Lock()


class Server:
    """A program that waits for calls. Ends with this process."""

    def __init__(self, program, folder):
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair()
        descriptor = str(other.fileno())
        self._process = subprocess.Popen(
            [program], cwd=folder, pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            env=os.environ | {
                "LD_PRELOAD": os.environ[LIBRARY],
                "REFRACT_FORK_SERVER_FD": descriptor,
            },
        )  # fmt: skip
        other.close()

    def close(self):
        self._socket.close()
        self._process.wait()

    def start(self, command, files):
        """A process of the program with `files` as 0, 1 and 2."""
        # The protocol of tests/fork_server.cc: number of arguments and bytes of
        # their text, with four descriptors beside the header (SCM_RIGHTS):
        # stdin, stdout, stderr, and the socket that gets the process's id and,
        # when it has ended, its status.
        text = b"".join(os.fsencode(part) + b"\0" for part in command)
        header = struct.pack("=II", len(command), len(text))
        ours, status = socket.socketpair()
        # Header and text of a call must not be mixed with those of another
        # thread's call.
        with status, self._lock:
            numbers = array.array("i", [f.fileno() for f in (*files, status)])
            self._socket.sendmsg(
                [header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)]
            )
            self._socket.sendall(text)
        return Process(command, ours)

    def popen(self, command, stderr):
        """Like subprocess.Popen(command, stdout=PIPE, stderr=stderr, text=True)."""
        reading, writing = os.pipe()
        out = open(reading, encoding="utf-8")
        with open(writing, "wb") as given, open(os.devnull, "rb") as nothing:
            process = self.start(command, (nothing, given, stderr))
        process.stdout = out
        return process

    def call(self, command, timeout):
        """Like subprocess.run(command, capture_output=True, text=True)."""
        with (
            open(os.devnull, "rb") as nothing,
            open(os.memfd_create("stdout"), "w+b") as out,
            open(os.memfd_create("stderr"), "w+b") as err,
        ):
            process = self.start(command, (nothing, out, err))
            try:
                process.wait(timeout)
            finally:
                process.kill()
                process.wait()
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(
                command, process.returncode, out.read().decode(), err.read().decode()
            )


class Process:
    """What tests use of subprocess.Popen."""

    stdout = None

    def __init__(self, command, status):
        self.args, self.returncode = command, None
        self._status, self._lock = status, threading.Lock()
        self.pid = self._read()

    def _read(self):
        number = self._status.recv(4, socket.MSG_WAITALL)
        if len(number) < 4:
            raise ConnectionError("the fork server ended")
        return struct.unpack("=i", number)[0]

    def wait(self, timeout=None):
        with self._lock:
            if self.returncode is None:
                self._status.settimeout(timeout)
                try:
                    ended = self._read()
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired(self.args, timeout) from None
                self.returncode = os.waitstatus_to_exitcode(ended)
                self._status.close()
        return self.returncode

    def poll(self):
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


def server(program, folder):
    """This process's server of a program, with this environment and the current
    folder `folder`; None: there is no library to preload."""
    if LIBRARY not in os.environ:
        return None
    # A process that was forked from this one has servers of its own.
    key = (os.getpid(), program, str(folder), tuple(sorted(os.environ.items())))
    with _lock:
        if key not in _servers:
            _servers[key] = Server(program, folder)
        return _servers[key]
