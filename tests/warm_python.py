#!/usr/bin/env python3
"""`python3 -c CODE ARGUMENT…`, `python3 -m MODULE ARGUMENT…` and `python3 FILE.py
ARGUMENT…` in a process that already holds PyTorch.

PyTorch and its reader of .pt2 files take 6 s of CPU time to import; the model of a
test then runs in milliseconds. Tests therefore run under this file and name it as
REFRACT_PYTHON. The first call starts a server, which imports both once and forks a
process for each call. The process gets the caller's arguments, folder, environment and
open files 0 to 2, and imports everything else, models/zoo above all, anew. The call
ends as the process does, by exit status or signal; the process and its children end
with their caller.

REFRACT_WARM_PYTHON: the interpreter with PyTorch. Other command lines, and calls where
no server can be started, go to that interpreter itself. REFRACT_BUILD_DIR: the server's
files are in its tests/warm_python. A server without calls for IDLE_S ends itself.
"""

import array
import atexit
import contextlib
import fcntl
import gc
import json
import os
import pathlib
import random
import runpy
import signal
import socket
import struct
import subprocess
import sys

IDLE_S = 60
SOCKET = "socket"
# Modules that torch.export.load imports when it is called.
PRELOADED = (
    "torch", "torch._export.serde.serialize", "torch._functorch.aot_autograd",
    "torch.export._trace", "torch.export._unlift",
    "torch.export.pt2_archive._package",
)  # fmt: skip
READY = b"r"


def interpreter():
    return os.environ.get("REFRACT_WARM_PYTHON") or sys.executable


# ------------------------------------------------------------------- the caller


def folder():
    build = os.environ.get("REFRACT_BUILD_DIR")
    if build is None:
        return None
    path = pathlib.Path(build) / "tests" / "warm_python"
    path.mkdir(parents=True, exist_ok=True)
    return path


def connect(path):
    """A connection to the server of folder `path`, or None."""
    connection = socket.socket(socket.AF_UNIX)
    before = os.getcwd()
    # Relative, since the path of a socket has at most 107 bytes.
    os.chdir(path)
    try:
        connection.connect(SOCKET)
    except OSError:
        connection.close()
        return None
    finally:
        os.chdir(before)
    return connection


def start_server(path):
    """Returns when the server takes calls or has ended."""
    reading, writing = os.pipe()
    with open(path / "log", "ab") as log:
        subprocess.Popen(
            [interpreter(), os.path.abspath(__file__), "--serve", str(writing)],
            cwd=path, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            pass_fds=[writing], start_new_session=True,
        )  # fmt: skip
    os.close(writing)
    with open(reading, "rb") as ready:
        ready.read()


def reach_server():
    path = folder()
    if path is None:
        return None
    connection = connect(path)
    if connection is None:
        with open(path / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            connection = connect(path)
            if connection is None:
                start_server(path)
                connection = connect(path)
    return connection


def call(arguments):
    """Runs -c CODE, -m MODULE or FILE.py with arguments; ends as that process ended."""
    connection = None
    with contextlib.suppress(OSError):
        connection = reach_server()
    if connection is None:
        os.execv(interpreter(), [interpreter(), *arguments])
    message = json.dumps(
        {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    ).encode()
    files = array.array("i", [0, 1, 2])
    connection.sendmsg(
        [struct.pack("<Q", len(message))],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)],
    )
    connection.sendall(message)
    status = connection.recv(4, socket.MSG_WAITALL)
    if len(status) < 4:
        sys.exit("warm_python: the server ended")
    (status,) = struct.unpack("<i", status)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    sys.exit(os.waitstatus_to_exitcode(status))


# ------------------------------------------------------------------- the server


def receive(connection):
    """(the caller's message, its files 0 to 2)."""
    data, files, _, _ = socket.recv_fds(connection, 8, 3)
    (length,) = struct.unpack("<Q", data)
    message = connection.recv(length, socket.MSG_WAITALL)
    if len(message) < length or len(files) != 3:
        raise ConnectionError("the caller is gone")
    return json.loads(message), files


def be(message, files):
    """In the process of a call: what the interpreter does."""
    os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(message["folder"])
    os.environ.clear()
    os.environ.update(message["environment"])
    what, *arguments = message["arguments"]
    code, first = None, os.path.dirname(os.path.abspath(what))
    if what in ("-c", "-m"):
        code, *arguments = arguments
        first = ""
    sys.argv = [what, *arguments]
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # Without this file's folder.
    sys.path[:] = [first, *filter(None, added), *sys.path[1:]]
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    # Else each call would draw the same numbers.
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    status = 0
    try:
        if what == "-m":
            runpy.run_module(code, run_name="__main__", alter_sys=True)
        else:
            name = "<string>"
            if code is None:
                name = main.__file__ = os.path.abspath(what)
                code = pathlib.Path(name).read_bytes()
            exec(compile(code, name, "exec"), main.__dict__)
    except SystemExit as end:
        status = end.code
        if status is None:
            status = 0
        elif not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(status & 0xFF)


def watch(connection):
    """In a process beside that of the call: ends it when its caller is gone, and
    tells the caller how it ended."""
    import threading

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, files = receive(connection)
    process = os.fork()
    if process == 0:
        connection.close()
        be(message, files)
    for file in files:
        os.close(file)

    def end_with_caller():
        with contextlib.suppress(OSError):
            connection.recv(1)
        # Twice: it may not have its group yet.
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(process, signal.SIGKILL)

    threading.Thread(target=end_with_caller, daemon=True).start()
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(OSError):
        connection.sendall(struct.pack("<i", status))


def serve(ready):
    """In the server's folder, until no call has come for IDLE_S."""
    import importlib

    for name in PRELOADED:
        # Names of another version of PyTorch: its calls import them themselves.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if "torch" not in sys.modules:
        sys.exit("warm_python: there is no PyTorch")
    # A collection in a forked process would copy every page of these modules.
    gc.freeze()
    # Ended processes leave nothing behind.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(SOCKET)
    listener.listen(64)
    listener.settimeout(IDLE_S)
    os.write(ready, READY)
    os.close(ready)
    ending = False
    while True:
        try:
            connection, _ = listener.accept()
        except (TimeoutError, BlockingIOError):
            if ending:
                return
            # Later calls start another server; connected calls are taken.
            ending = True
            os.unlink(SOCKET)
            listener.setblocking(False)
            continue
        connection.setblocking(True)
        if os.fork() == 0:
            listener.close()
            try:
                watch(connection)
            finally:
                os._exit(0)
        connection.close()


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--serve"]:
        serve(int(arguments[1]))
    elif arguments[:1] in (["-c"], ["-m"]) and len(arguments) > 1:
        call(arguments)
    elif arguments and arguments[0].endswith(".py"):
        call(arguments)
    else:
        os.execv(interpreter(), [interpreter(), *arguments])


if __name__ == "__main__":
    main()
