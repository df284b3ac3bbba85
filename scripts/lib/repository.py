"""Model repositories made by the programs, from models of models/zoo."""

import pathlib
import subprocess
import sys

from scripts.lib.nodes import SOURCE, program


def run(*command, check=True, timeout=300, **kwargs):
    """Runs a command; on an unexpected failure shows what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=SOURCE,
        check=False,
        **kwargs,
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"{' '.join(map(str, command))}: exit {done.returncode}\n"
            f"{done.stdout}{done.stderr}"
        )
    return done


def refract(*arguments, **kwargs):
    return run(program("refract"), *arguments, **kwargs)


def export(model, folder, *arguments, preset="tiny"):
    """Exports a zoo model, a tiny one by default; returns the folder."""
    run(
        sys.executable, "-m", "models.zoo.export", "--model", model,
        "--preset", preset, "--out", folder, *arguments,
    )
    return pathlib.Path(folder)


def add_model(repository, name, file, method="heuristic"):
    """Imports `file` with the tables beside it and partitions it."""
    file = pathlib.Path(file)
    tables = file.parent / "tables"
    extra = ["--tables", tables] if tables.is_dir() else []
    refract(
        "import", file, "--repo", repository, "--name", name, *extra,
        "--sample", file.parent / "sample.safetensors",
    )
    refract(
        "partition", pathlib.Path(repository) / name, "--method", method,
        "--write",
    )
