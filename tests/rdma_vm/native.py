"""Runs the programs of a job on this machine's own RDMA devices."""

import json
import os
import pathlib
import signal
import subprocess
import time

from programs import TIMED_OUT

SYSFS = pathlib.Path("/sys/class/infiniband")
DEVICES = pathlib.Path("/dev/infiniband")


def devices(sysfs=SYSFS, device_files=DEVICES):
    """Names of RDMA devices with an active first port that we may open."""
    found = []
    for device in sorted(sysfs.glob("*")):
        try:
            state = (device / "ports/1/state").read_text()
        except OSError:
            continue
        verbs = [
            path.name
            for path in (device.parent.parent / "infiniband_verbs").glob("*")
            if (path / "ibdev").exists()
            and (path / "ibdev").read_text().strip() == device.name
        ]
        if "ACTIVE" in state and any(
            os.access(device_files / name, os.R_OK | os.W_OK) for name in verbs
        ):
            found.append(device.name)
    return found


def _counters(sysfs=SYSFS):
    values = {}
    for device in sorted(sysfs.glob("*")):
        values[device.name] = {
            path.name: int(path.read_text())
            for path in (device / "ports/1/hw_counters").glob("*")
            if path.name != "lifespan"
        }
    return values


def _run_one(program, follower_type):
    folder = program.folder
    (folder / "counters_before.json").write_text(json.dumps(_counters()))
    begin = time.monotonic()
    with (
        open(folder / "stdout", "wb") as out,
        open(folder / "stderr", "wb") as err,
    ):
        process = subprocess.Popen(
            ["bash", str(folder / "command.sh")],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    follower = follower_type(folder)
    code = None
    try:
        while code is None and time.monotonic() - begin < program.limit_s:
            follower.copy()
            try:
                code = process.wait(0.05)
            except subprocess.TimeoutExpired:
                pass
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        follower.close()
    end = time.monotonic()
    (folder / "begin").write_text(f"{begin}\n")
    (folder / "end").write_text(f"{end}\n")
    (folder / "counters_after.json").write_text(json.dumps(_counters()))
    if code is not None and code < 0:
        code = 128 - code  # as a shell says it
    (folder / "exit_code").write_text(
        f"{TIMED_OUT if code is None else code}\n"
    )
    program.read_result()


def run(programs, announce, report, follower_type):
    for number, program in enumerate(programs):
        announce(number, programs)
        _run_one(program, follower_type)
        report(program)
    return {"where": "native", "problem": None}
