"""Exports a model of the zoo.

    python -m models.zoo.export --model dlrm --out DIR

The folder then holds NAME.pt2, NAME.pt, tables/*.safetensors,
sample.safetensors and NAME.json; README.md says what is in each.
"""

import contextlib
import json
import re
import shutil
import sys
import warnings
from pathlib import Path

import torch
from torch.fx.experimental import _config as shape_config

from models.zoo import build, cli, safetensors_io
from models.zoo.inputs import make_inputs
from models.zoo.rows import GIB

FORMATS = {"pt2": ".pt2", "torchscript": ".pt"}

# Sizes that tracing sees. None is 0 or 1, which exporters treat as constants,
# and the batch equals no other size of a model.
SAMPLE_BATCH = 5


def dynamic_shapes(inputs):
    """Returns the dynamic shapes for torch.export: {input: {axis: size}}."""
    sizes = {}

    def size(extent):
        name, plus = re.fullmatch(r"(\w+?)(?:\+(\d+))?", extent).groups()
        base = sizes.setdefault(name, torch.export.Dim(name))
        return base + int(plus) if plus else base

    return {
        item.name: {
            axis: size(extent)
            for axis, extent in enumerate(item.shape)
            if isinstance(extent, str)
        }
        for item in inputs
    }


def export_pt2(model, sample, path, generic_batch=True):
    """Writes `path` with torch.export.

    torch.export assumes by default that no dynamic size is 0 or 1, and adds a
    guard that refuses a batch of 1 although the graph is right for it.
    generic_batch: export without that assumption.
    """
    with (
        shape_config.patch(backed_size_oblivious=generic_batch),
        _without_warnings(),
    ):
        program = torch.export.export(
            model, (), sample, dynamic_shapes=dynamic_shapes(model.inputs)
        )
        torch.export.save(program, path)


def export_torchscript(model, sample, path):
    """Writes `path` as a frozen trace; tables stay attributes by name."""
    with _without_warnings(), torch.no_grad():
        traced = torch.jit.trace(
            model, tuple(sample[item.name] for item in model.inputs)
        )
        # The optimisation of numerics folds a batch norm into the linear layer
        # before it even when others read that layer, as Dice does: the scores
        # are then wrong (seen with torch 2.11).
        frozen = torch.jit.freeze(
            traced,
            preserved_attrs=list(model.table_modules()),
            optimize_numerics=False,
        )
        torch.jit.save(frozen, str(path))


@contextlib.contextmanager
def _without_warnings():
    """Hides two warnings that mean nothing here: TorchScript is deprecated
    (it is the second format on purpose), and no tensor covers the whole
    storage of a stand-in."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="No complete tensor found")
        yield


def write_tables(model, folder, seed):
    """Writes one file per table; returns {parameter: file name}."""
    folder.mkdir(exist_ok=True)
    files = {}
    for done, (fqn, table) in enumerate(model.table_modules().items()):
        if sys.stderr.isatty():
            count = len(model.table_modules())
            print(f"\rtable {done + 1} of {count}", end="", file=sys.stderr)
        files[fqn] = f"{fqn.removesuffix('.weight')}.safetensors"
        safetensors_io.write_streaming(
            folder / files[fqn],
            [
                (
                    fqn,
                    torch.float32,
                    tuple(table.weight.shape),
                    build.table_chunks(model, fqn, seed),
                )
            ],
        )
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return files


def describe(model, name, preset, seed, table_files):
    """Returns the contents of NAME.json."""
    return {
        "model": name,
        "preset": preset,
        "seed": seed,
        "torch_version": torch.__version__,
        "inputs": [item.as_json() for item in model.inputs],
        "outputs": [
            {
                "name": "output_0",
                "dtype": "float32",
                "shape": list(model.output_shape),
            }
        ],
        "tables": [
            {
                "name": fqn,
                "rows": table.weight.shape[0],
                "dim": table.weight.shape[1],
                "dtype": "float32",
                # null: the values are inside the model's own file.
                "file": table_files.get(fqn),
            }
            for fqn, table in model.table_modules().items()
        ],
    }


def table_bytes(model):
    return sum(
        4 * table.weight.numel() for table in model.table_modules().values()
    )


def export(model, name, out, formats, preset, seed, tables_inside, generic):
    """Writes all files of one model into the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    for other in build.MODELS:
        # Files of both would have the same names.
        if other != name and (out / f"{other}.json").exists():
            raise cli.InputError(f"{out}: already holds the model {other}")
    (out / f"{name}.json").unlink(missing_ok=True)
    free = shutil.disk_usage(out).free
    copies = len(formats) if tables_inside else 1
    if table_bytes(model) * copies > free:
        raise cli.InputError(
            f"{out}: tables need {table_bytes(model) * copies / GIB:.1f} GiB, "
            f"the disk has {free / GIB:.1f} GiB free"
        )

    if tables_inside:
        files = {}
        tables = model.table_modules()
        model.bind(
            {fqn: build.table_values(model, fqn, seed) for fqn in tables}
        )
    else:
        files = write_tables(model, out / "tables", seed)
        files = {fqn: f"tables/{file}" for fqn, file in files.items()}

    description = describe(model, name, preset, seed, files)
    sample = make_inputs(
        description["inputs"], SAMPLE_BATCH, seed, bags="ragged"
    )
    if "pt2" in formats:
        export_pt2(model, sample, out / f"{name}.pt2", generic)
    if "torchscript" in formats:
        export_torchscript(model, sample, out / f"{name}.pt")
    safetensors_io.write(out / "sample.safetensors", sample)
    # Last, so that a folder with a description is complete.
    text = json.dumps(description, indent=2) + "\n"
    (out / f"{name}.json").write_text(text)


def parse_arguments(argv=None):
    parser = cli.Parser(
        prog="python -m models.zoo.export",
        description="Writes a model, its tables and a sample into a folder.",
    )
    add = parser.add_argument
    add("--model", required=True, choices=sorted(build.MODELS), help="which model")
    add("--out", required=True, metavar="DIR", help="folder, made if missing")
    add(
        "--formats",
        default="pt2,torchscript",
        metavar="LIST",
        help="comma-separated: pt2 (torch.export), torchscript (frozen trace)",
    )
    add(
        "--preset",
        choices=["default", "tiny"],
        default="default",
        help="published widths, or small ones for tests, with tables of at "
        f"most {build.TINY_MAX_ROWS} rows",
    )
    add(
        "--tables-gib",
        type=cli.positive_float,
        metavar="GIB",
        help="scale rows until all tables take this many GiB; default "
        f"{build.DEFAULT_TABLES_GIB:g}, with --preset tiny no scale",
    )
    add(
        "--rows-scale",
        type=cli.positive_float,
        metavar="F",
        help="fraction of the published rows, up to 1",
    )
    add(
        "--min-rows",
        type=cli.positive_int,
        default=4,
        metavar="N",
        help="rows that scaling leaves a table, unless published with fewer",
    )
    add(
        "--max-rows",
        type=cli.positive_int,
        metavar="N",
        help="upper limit of rows per table",
    )
    add("--seed", type=int, default=1, help="decides every value")
    add(
        "--zero-share",
        type=cli.fraction,
        metavar="F",
        help="part of every ReLU's results that is zero, by shifted biases; "
        "about 0.5 without",
    )
    add(
        "--tables-inside",
        action="store_true",
        help="keep table values in the model files, write no tables/; holds "
        "all tables in memory",
    )
    add(
        "--plain-guards",
        action="store_true",
        help="export as torch.export does by default: the .pt2 then carries "
        "guards that refuse a batch of 1",
    )
    args = parser.parse_args(argv)
    args.formats = [f for f in args.formats.split(",") if f]
    unknown = set(args.formats) - set(FORMATS)
    if unknown or not args.formats:
        raise cli.InputError(
            f"--formats wants {' and/or '.join(FORMATS)}, "
            f"not {','.join(sorted(unknown)) or 'nothing'}"
        )
    if args.seed < 0:
        raise cli.InputError("--seed must not be negative")
    if args.rows_scale is not None and args.rows_scale > 1:
        raise cli.InputError("--rows-scale must not exceed 1")
    return args


def main(argv=None):
    args = parse_arguments(argv)
    torch.set_num_threads(1)
    rows = build.choose_rows(
        args.model,
        args.preset,
        args.rows_scale,
        args.tables_gib,
        args.min_rows,
        args.max_rows,
    )
    model = build.build(
        args.model, rows, args.preset, args.seed, args.zero_share
    )
    out = Path(args.out)
    try:
        export(
            model,
            args.model,
            out,
            args.formats,
            args.preset,
            args.seed,
            args.tables_inside,
            not args.plain_guards,
        )
    except OSError as error:
        raise cli.InputError(f"{error.filename or out}: {error.strerror}")
    print(
        f"{out}: {args.model}, {len(model.table_modules())} tables, "
        f"{table_bytes(model) / GIB:.3g} GiB, seed {args.seed}"
    )


if __name__ == "__main__":
    cli.run(main, "models.zoo.export")
