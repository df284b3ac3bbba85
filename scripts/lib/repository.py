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
import sys
import tempfile
import time

from scripts.lib import fork_server
from scripts.lib.nodes import BUILD, SOURCE, program

# No test run takes that long: whoever copies such an export touched it before.
OLD_EXPORT_S = 14 * 24 * 3600


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

    Tests share exports (kept_export): their files depend on models/zoo, PyTorch and
    the arguments alone. Exports run in this process, since most of the seconds of a
    process of its own would be the start of PyTorch.
    """
    folder = pathlib.Path(folder)
    command = ["--model", model, "--preset", preset, *map(str, arguments)]
    if "REFRACT_BUILD_DIR" not in os.environ:
        _export(command, folder)
        return folder
    sources = (SOURCE / "models" / "zoo").glob("*.py")
    kept_export(model, command, sources, folder, lambda fresh: _export(command, fresh))
    return folder


def exports_folder():
    """For the exports of all clones; of this build where a user has no cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(base) / "refract" / "exports"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = BUILD / "tests" / "exports"
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def kept_export(name, arguments, sources, folder, make):
    """Copies to `folder` what make(FOLDER) wrote, in this run or in an earlier one.

    torch.export takes seconds for a model, in every clean clone again. What it writes
    depends on PyTorch, Python, `arguments` and the files `sources` alone, and is kept
    under a digest of all of them, as ccache keeps objects.
    """
    digest = hashlib.sha256()
    for part in (importlib.metadata.version("torch"), sys.version, *map(str, arguments)):
        digest.update(part.encode() + b"\0")
    for source in sorted(sources):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    exports = exports_folder()
    kept = exports / f"{name}-{digest.hexdigest()[:20]}"
    with open(exports / f"{kept.name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kept.exists():
            os.utime(kept)
        else:
            _drop_old_exports(exports)
            # A folder under its final name is complete.
            fresh = pathlib.Path(tempfile.mkdtemp(dir=exports))
            try:
                make(fresh)
                fresh.rename(kept)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
        # A copy: tests change files in place.
        shutil.copytree(kept, folder, dirs_exist_ok=True)


def _drop_old_exports(exports):
    """Of sources that changed, and of processes that were killed."""
    for path in exports.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > OLD_EXPORT_S:
                path.unlink() if path.is_file() else shutil.rmtree(path)


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
