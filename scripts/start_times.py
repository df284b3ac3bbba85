#!/usr/bin/env python3
"""How long a GPU node takes until its models are ready.

    scripts/start_times.py models/ranker --copies 68 [--bin build/release/bin]

makes a repository of hard-linked copies of the model's newest version in a
temporary folder, starts refract-gpu-node on it twice (the second start finds
the times that the first one measured), and prints the seconds from the start
of the process until the first, half and all of the models are ready.
"""

import argparse
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time


def make_copies(model, copies, repository):
    for i in range(copies):
        copy = repository / f"{model.name}_{i}"
        shutil.copytree(
            model, copy, copy_function=lambda a, b: pathlib.Path(b).hardlink_to(a),
            ignore=shutil.ignore_patterns(".execution_times.json"),
        )
        config = copy / "config.pbtxt"
        text = config.read_text().replace(
            f'name: "{model.name}"', f'name: "{copy.name}"', 1
        )
        # config.pbtxt is a hard link: writing to it would change the original.
        config.unlink()
        config.write_text(text)


def start(program, repository, copies, extra):
    """Seconds after which each model was ready, ascending."""
    began = time.monotonic()
    process = subprocess.Popen(
        [program, "--model-repository", repository, "--host", "127.0.0.1",
         "--port", "0", "--metrics-port", "0", *extra],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    measured = {}
    listening = threading.Event()
    at = []

    def read_log():
        for line in process.stderr:
            # The one line per model that says how long it takes.
            found = re.search(r"model '([^']*)' version \d+: .*1 row takes", line)
            if found:
                measured.setdefault(found.group(1), time.monotonic() - began)

    log = threading.Thread(target=read_log)
    log.start()
    for line in process.stdout:
        if "listening on" in line:
            at.append(time.monotonic() - began)
            listening.set()
            break
    while process.poll() is None and len(measured) < copies:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.wait()
    log.join()
    if not at or len(measured) < copies:
        raise SystemExit(f"only {len(measured)} of {copies} models were measured")
    return sorted(max(at[0], seconds) for seconds in measured.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, help="DIR/NAME, partitioned")
    parser.add_argument("--copies", type=int, default=68)
    parser.add_argument("--bin", type=pathlib.Path,
                        default=pathlib.Path("build/release/bin"))
    parser.add_argument("extra", nargs="*", help="options of the node, after --")
    options = parser.parse_args()
    # Beside the model: hard links need the same file system.
    with tempfile.TemporaryDirectory(dir=options.model.resolve().parents[1]) as folder:
        repository = pathlib.Path(folder)
        make_copies(options.model.resolve(), options.copies, repository)
        for name in ("first start", "second start"):
            ready = start(options.bin / "refract-gpu-node", repository,
                          options.copies, options.extra)
            print(f"{name}: first of {options.copies} models ready after "
                  f"{ready[0]:.2f} s, half after {statistics.median(ready):.2f} s, "
                  f"all after {ready[-1]:.2f} s")


if __name__ == "__main__":
    main()
