"""A new version of a model: its tables with all deltas, and other dense weights.

    next_version.make("models/ranker/1", {"top.weight": tensor}, {"user.weight": rows})

The versions share the files of the tables (hard links); the split plan is that of the
version before. Nodes that follow the repository load the new version with its delta
beside the old one and switch in one step.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import struct
import tempfile

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from scripts.lib import deltas
from scripts.lib.repository import refract

# Beside a version's tables: the dense weights that are not those of the model's file.
DENSE = "dense.safetensors"


def make(version, weights, tables=None, golden=True, folder=None):
    """Writes dense weights {name: tensor} and rows {table: Rows} as the next version
    and returns its folder. Deltas of the old version are merged with the rows.

    `golden`: record PyTorch's answers for the checks before the version is served.
    `folder`: of the old version's deltas, where it is not in the version; the folder of
    the new version's deltas is then beside it.
    """
    version = pathlib.Path(version).absolute()
    model, number = version.parent, int(version.name) + 1
    place = model / str(number)
    if place.exists():
        raise deltas.DeltaError(f"{place} is there: {version} is not the last version")
    old = deltas.Folder(folder or version / "deltas", model.name, version.name)
    # No writer may add a delta to the old version between the merge and the rename: its rows
    # would be in neither version's tables.
    with _work_folder(model) as work, old.locked():
        made = _import(version, work, weights, golden)
        _copy_plan(version, made)
        changes, (sequence, _) = old.merged(tables), old.last()
        check(changes, tables_of(made))
        if changes:
            path = old.path.absolute().parent / str(number) if folder else made / "deltas"
            deltas.Folder(path, model.name, number).write(
                changes, parent=(0, ""), sequence=sequence + bool(tables)
            )
        # Last: nodes that follow the repository take a version when its folder appears, and
        # then everything is in it.
        made.rename(place)
    return place


@contextlib.contextmanager
def _work_folder(model):
    """A folder in `model`, removed at the end of the block.

    `refract import` removes such folders where it gets their lock: those of processes
    that were killed (models/repository/files/temporary_folder.h).
    """
    with contextlib.ExitStack() as stack:
        with _locked(model):
            work = pathlib.Path(tempfile.mkdtemp(dir=model, prefix=".tmp-"))
            stack.enter_context(_locked(work))
        # ExitStack removes the folder before it closes the lock.
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        yield work


@contextlib.contextmanager
def _locked(folder):
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # NFS has no locks of folders; there `refract import` leaves them alone.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _refract(*arguments):
    done = refract(*arguments, check=False, timeout=None)
    if done.returncode:
        raise deltas.DeltaError(done.stderr.strip())


def _inspect(version):
    with tempfile.NamedTemporaryFile() as report:
        _refract("inspect", version, "--json", report.name)
        return json.loads(pathlib.Path(report.name).read_text())


def _import(version, work, weights, golden):
    """The version's own file with all tables and the new weights, in a repository of
    its own, where nodes do not look."""
    is_table = {table["name"] for table in _inspect(version)["tables"]}
    for name in sorted(is_table & weights.keys()):
        raise deltas.DeltaError(f"'{name}' is a table: its rows change by --rows")
    folder = work / "tables"
    folder.mkdir()
    dense = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    for file in (version / "tables").glob("*.safetensors"):
        if file.name == DENSE:
            dense = {**load_file(file), **dense}
        else:
            os.link(file, folder / file.name)
    save_file(dense, folder / DENSE)
    (source,) = (f for f in version.iterdir() if f.suffix in (".pt2", ".pt"))
    sample = version / "sample.safetensors"
    _refract(
        "import", source, "--repo", work / "repository", "--name", version.parent.name,
        "--tables", folder, "--link", *(["--sample", sample] if sample.exists() else []),
        *([] if golden else ["--no-golden"]),
    )
    return work / "repository" / version.parent.name / "1"


def tables_of(version):
    """{table: (rows, dim, dtype)} of a version; rows is None where rows have ids."""
    has_ids = set()
    for file in (version / "tables").glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            has_ids |= {n.removesuffix(".ids") for n in tensors.keys() if n.endswith(".ids")}
    return {
        table["name"]: (
            None if table["name"] in has_ids else table["rows"], table["dim"], table["dtype"]
        )
        for table in _inspect(version)["tables"]
    }


def check(changes, tables):
    """Refuses {table: Rows} that nodes would refuse; `tables` as of tables_of().

    A node refuses all later deltas, too: each names the one before as its parent.
    """
    for table, change in changes.items():
        if table not in tables:
            raise deltas.DeltaError(
                f"the model has no table '{table}'; it has {deltas.some_of(tables)}"
            )
        rows, dim, dtype = tables[table]
        if dtype == "float64":
            raise deltas.DeltaError(f"table '{table}' cannot change: it is of float64")
        ids, values, deleted = change.sorted(table)
        for some in (ids, deleted):
            if rows is not None and some.numel() and not (0 <= some[0] and some[-1] < rows):
                raise deltas.DeltaError(
                    f"table '{table}': ids {some[0]} to {some[-1]} are not all in [0, {rows})"
                )
        if values is None or change.format:
            continue
        if values.shape[1] != dim:
            raise deltas.DeltaError(
                f"table '{table}': rows of {values.shape[1]}, not {dim}"
            )
        if str(values.dtype).removeprefix("torch.") not in ("float32", dtype):
            raise deltas.DeltaError(
                f"table '{table}': rows are {values.dtype}; wanted "
                + " or ".join(dict.fromkeys(("float32", dtype)))
            )
        if not values.isfinite().all():
            raise deltas.DeltaError(f"table '{table}': a row has a NaN or an infinity")


def _copy_plan(version, made):
    """The graphs are alike: of a plan only the model's digest differs."""
    plan = version / "split_plan.pb"
    if not plan.exists():
        return
    before, after = (_digest(_inspect(folder)["digest"]) for folder in (version, made))
    data = plan.read_bytes()
    if data.count(before) != 1:
        raise deltas.DeltaError(f"{plan} is not the plan of {version}")
    (made / plan.name).write_bytes(data.replace(before, after))


def _digest(text):
    """A message Digest of proto/graph.proto, from 32 hexadecimal digits."""
    return struct.pack("<BQBQ", 0x09, int(text[16:], 16), 0x11, int(text[:16], 16))
