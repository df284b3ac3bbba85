"""Model repositories made by the programs, from models of models/zoo."""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import io
import os
import pathlib
import shutil
import subprocess
import tempfile

from scripts.lib import fork_server
from scripts.lib.nodes import BUILD, SOURCE, program


def run(*command, check=True, timeout=300, **kwargs):
    """Runs a command; on an unexpected failure shows its output."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=SOURCE,
        check=False,
        **kwargs,
    )
    return _checked(command, done, check)


def _checked(command, done, check):
    if check and done.returncode != 0:
        raise AssertionError(
            f"{' '.join(map(str, command))}: exit {done.returncode}\n"
            f"{done.stdout}{done.stderr}"
        )
    return done


def start_once(path, *arguments, check=True, timeout=300, **kwargs):
    """Runs the program like run(), in tests without the seconds that its start takes."""
    command = [str(path), *map(str, arguments)]
    server = None if kwargs else fork_server.server(command[0], SOURCE)
    if server is None:
        return run(*command, check=check, timeout=timeout, **kwargs)
    return _checked(command, server.call(command, timeout), check)


def refract(*arguments, **kwargs):
    """start_once() of `refract`."""
    return start_once(program("refract"), *arguments, **kwargs)


def export(model, folder, *arguments, preset="tiny"):
    """Exports a zoo model, a tiny one by default; returns the folder.

    Tests share exports in a folder of the build (REFRACT_BUILD_DIR is set): an
    export takes seconds, and its files depend on models/zoo, PyTorch and the
    arguments alone. Exports run in this process, since most of the seconds of a process of
    its own would be the start of PyTorch.
    """
    folder = pathlib.Path(folder)
    command = ["--model", model, "--preset", preset, *map(str, arguments)]
    if "REFRACT_BUILD_DIR" not in os.environ:
        _export(command, folder)
        return folder
    version = importlib.metadata.version("torch")
    digest = hashlib.sha256(repr([*command, version]).encode())
    for source in sorted((SOURCE / "models" / "zoo").glob("*.py")):
        digest.update(source.read_bytes())
    exports = BUILD / "tests" / "exports"
    exports.mkdir(parents=True, exist_ok=True)
    kept = exports / f"{model}-{digest.hexdigest()[:20]}"
    with open(exports / f"{kept.name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            # A folder under its final name is complete.
            fresh = pathlib.Path(tempfile.mkdtemp(dir=exports))
            _export(command, fresh)
            fresh.rename(kept)
    # A copy: tests change files in place.
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    return folder


def _export(command, folder):
    # PyTorch takes seconds to load, which tests that find their export kept save.
    from models.zoo import export as zoo

    with contextlib.redirect_stdout(io.StringIO()):
        zoo.main([*command, "--out", str(folder)])


def add_model(repository, name, file, method="heuristic", golden=False):
    """Imports `file` with its tables and partitions it.

    golden: PyTorch is started for answers that nodes are checked with.
    """
    file = pathlib.Path(file)
    tables = file.parent / "tables"
    extra = ["--tables", tables] if tables.is_dir() else []
    if not golden:
        extra.append("--no-golden")
    refract(
        "import", file, "--repo", repository, "--name", name, *extra,
        "--sample", file.parent / "sample.safetensors",
    )
    refract(
        "partition", pathlib.Path(repository) / name, "--method", method,
        "--write",
    )


def zoo_repository(folder, model, *arguments, name=None, preset="tiny",
                   method="heuristic"):
    """folder/repository with a zoo model, exported to folder/model: its path."""
    exported = export(model, folder / model, *arguments, preset=preset)
    add_model(folder / "repository", name or model, exported / f"{model}.pt2",
              method=method)
    return folder / "repository"
