"""Calls of a program that starts once: the other side of tests/fork_server.cc, which
says why and how. Tests call `refract` this way, where REFRACT_FORK_SERVER names the
library to preload (ctest sets it).
"""

import array
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

    def call(self, command, timeout):
        """Like subprocess.run(command, capture_output=True, text=True)."""
        text = b"".join(os.fsencode(part) + b"\0" for part in command)
        header = struct.pack("=II", len(command), len(text))
        ours, status = socket.socketpair()
        with (
            ours, status, open(os.devnull, "rb") as nothing,
            open(os.memfd_create("stdout"), "w+b") as out,
            open(os.memfd_create("stderr"), "w+b") as err,
        ):  # fmt: skip
            files = array.array("i", [f.fileno() for f in (nothing, out, err, status)])
            with self._lock:
                self._socket.sendmsg(
                    [header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
                )
                self._socket.sendall(text)
            status.close()
            (process,) = struct.unpack("=i", self._read(ours))
            ours.settimeout(timeout)
            try:
                (ended,) = struct.unpack("=i", self._read(ours))
            except TimeoutError:
                os.kill(process, signal.SIGKILL)
                raise subprocess.TimeoutExpired(command, timeout) from None
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(
                command, os.waitstatus_to_exitcode(ended),
                out.read().decode(), err.read().decode(),
            )  # fmt: skip

    @staticmethod
    def _read(connection):
        number = connection.recv(4, socket.MSG_WAITALL)
        if len(number) < 4:
            raise ConnectionError("the fork server ended")
        return number


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
