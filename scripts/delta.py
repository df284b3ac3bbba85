#!/usr/bin/env python3
"""Writes deltas of a version's embedding tables, which CPU nodes apply while they
serve (docs/how-to/deltas.md).

    scripts/delta.py diff REPOSITORY/NAME/VERSION --before A --after B
    scripts/delta.py rows REPOSITORY/NAME/VERSION --rows CHANGES.safetensors
    scripts/delta.py easyrec REPOSITORY/NAME/VERSION FILE_OR_FOLDER…
    scripts/delta.py torchrec REPOSITORY/NAME/VERSION --tracked FILE --weights FILE
    scripts/delta.py merge REPOSITORY/NAME/VERSION
    scripts/delta.py push REPOSITORY/NAME/VERSION --to HOST:PORT
    scripts/delta.py push REPOSITORY/NAME/VERSION --kafka HOST:PORT/TOPIC
    scripts/delta.py version REPOSITORY/NAME/VERSION --weights FILE [--rows FILE]

diff: the rows in which two checkpoints differ (.safetensors, or a state dict that
torch.load reads). rows: tensors "TABLE/ids" [n] and "TABLE/rows" [n, dim], and
"TABLE/deleted" [m] if wanted. easyrec: parquet deltas of TorchEasyRec, a delta for each
global step. torchrec: ids of ModelDeltaTracker.get_unique() or get_unique_ids(), kept by
torch.save, with the rows of a checkpoint. merge: all deltas of the folder become one.
push: a CPU node gets those deltas of the folder over gRPC that it does not have, or a topic
of Kafka gets all of them.
version: the next version, with other dense weights, the rows of all deltas, and more rows if
wanted. --weights: a checkpoint of dense weights alone.
A new delta takes the next free sequence, and the last delta is its parent.
"""

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from scripts.lib import delta_kafka, delta_push, delta_sources, deltas, next_version


def read_safetensors(path):
    try:
        return load_file(path)
    except SafetensorError as error:
        raise deltas.DeltaError(f"{path}: {error}")


def read_checkpoint(path):
    path = pathlib.Path(path)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of many kinds
        raise deltas.DeltaError(f"{path}: no state dict: {str(error).splitlines()[0]}")
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    tensors = {}
    if isinstance(state, dict):
        tensors = {name: value for name, value in state.items() if torch.is_tensor(value)}
    if not tensors:
        raise deltas.DeltaError(f"{path}: no state dict: there are no tensors in it")
    return tensors


def read_rows(path):
    tensors = read_safetensors(path)
    tables = {}
    for name, tensor in tensors.items():
        table, _, part = name.rpartition("/")
        if part not in ("ids", "rows", "deleted") or not table:
            raise deltas.DeltaError(
                f"{path}: tensor '{name}' is no TABLE/ids, TABLE/rows or TABLE/deleted"
            )
        if part == "rows" and tensor.is_floating_point():
            tensor = tensor.float()  # what nodes take for a table of any type
        setattr(tables.setdefault(table, deltas.Rows()), part, tensor)
    for table, changes in tables.items():
        if (changes.ids is None) != (changes.rows is None):
            raise deltas.DeltaError(f"{path}: table '{table}' has ids or rows alone")
    return tables


def folder_of(version, folder):
    path = pathlib.Path(version).absolute()
    # A trainer's machine may have a folder of deltas and no repository.
    is_version = folder or (path / "graph.pb").is_file()
    if not is_version or not path.name.isdigit():
        raise deltas.DeltaError(f"{version} is no version: DIR/NAME/VERSION")
    return deltas.Folder(
        folder or path / "deltas", path.parent.name, int(path.name)
    )


def renames(arguments):
    pairs = [text.partition("=") for text in arguments.rename]
    for name, _, table in pairs:
        if not name or not table:
            raise deltas.DeltaError(f"--rename {name}: wanted NAME=TABLE")
    return {name: table for name, _, table in pairs}


def changes_of(arguments):
    """{table: Rows} of one delta."""
    if arguments.command == "diff":
        before, after = map(read_checkpoint, (arguments.before, arguments.after))
        known = known_tables(arguments.version)
        changes = deltas.changed_rows(before, after, arguments.table, known)
        if known is not None:
            print_dense(before, after, known)
        return changes
    if arguments.command == "torchrec":
        return delta_sources.tracked(
            delta_sources.load_tracked(arguments.tracked),
            read_checkpoint(arguments.weights), renames(arguments),
        )
    return read_rows(arguments.rows)


def print_dense(before, after, known):
    """Names the weights that differ and are in no delta."""
    dense = [
        name for name in sorted(before.keys() & after.keys() - known.keys())
        if name.removesuffix(".ids") not in known
        and not torch.equal(before[name], after[name])
    ]
    if dense:
        print("dense weights differ, which needs a new version (delta.py version): "
              f"{deltas.some_of(dense)}")


def write_easyrec(folder, arguments):
    last, known = arguments.after, known_tables(arguments.version)
    # A step without changes writes no delta, but counts as written for --after.
    for step, tables in delta_sources.easyrec(
        arguments.files, renames(arguments), arguments.after
    ):
        last = step
        if tables:
            print(f"step {step}: delta {write(folder, tables, known)} in {folder.path}")
        else:
            print(f"step {step}: no row has changed")
    if last == arguments.after:
        print(f"no step after {last}")


def known_tables(version):
    """As next_version.check() takes them; None if the version is not on this machine."""
    path = pathlib.Path(version).absolute()
    return next_version.tables_of(path) if (path / "graph.pb").is_file() else None


def write(folder, tables, known):
    if known is not None:
        next_version.check(tables, known)
    sequence = folder.write(tables)
    for table, changes in sorted(tables.items()):
        upserted = 0 if changes.ids is None else len(changes.ids)
        deleted = 0 if changes.deleted is None else len(changes.deleted)
        print(f"{table}: {upserted} rows, {deleted} deleted")
    return sequence


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("diff", "rows", "easyrec", "torchrec", "merge", "push", "version"):
        command = commands.add_parser(name)
        command.add_argument("version", metavar="REPOSITORY/NAME/VERSION")
        command.add_argument(
            "--folder", help="folder of the deltas (default: deltas in the version's folder)"
        )
        if name == "diff":
            command.add_argument("--before", required=True, metavar="FILE")
            command.add_argument("--after", required=True, metavar="FILE")
            command.add_argument(
                "--table", action="append", help="write this table only; may be repeated"
            )
        if name in ("rows", "version"):
            command.add_argument("--rows", required=name == "rows", metavar="FILE")
        if name == "version":
            command.add_argument("--weights", required=True, metavar="FILE")
            command.add_argument(
                "--no-golden", action="store_true",
                help="record no answers of PyTorch for the checks of nodes",
            )
        if name == "easyrec":
            command.add_argument("files", nargs="+", metavar="FILE_OR_FOLDER")
            command.add_argument(
                "--after", type=int, metavar="STEP",
                help="leave out the steps up to this one: they have been written",
            )
        if name == "torchrec":
            command.add_argument("--tracked", required=True, metavar="FILE")
            command.add_argument("--weights", required=True, metavar="FILE")
        if name == "push":
            to = command.add_mutually_exclusive_group(required=True)
            to.add_argument("--to", metavar="HOST:PORT")
            to.add_argument(
                "--kafka", metavar="HOST:PORT/TOPIC", help="brokers are separated by commas"
            )
            command.add_argument(
                "--after", type=int, default=0, metavar="SEQUENCE",
                help="with --kafka: leave out the deltas up to this one",
            )
            command.add_argument(
                "--kafka-config", metavar="FILE",
                help="lines PROPERTY=VALUE of librdkafka's configuration",
            )
            command.add_argument("--token", metavar="FILE", help="file with the control token")
            command.add_argument(
                "--ca", metavar="FILE", help="file with certificate authorities, for TLS"
            )
        if name in ("easyrec", "torchrec"):
            command.add_argument(
                "--rename", action="append", default=[], metavar="NAME=TABLE",
                help="TABLE of the version is NAME in the trainer (default: NAME.weight)",
            )
    arguments = parser.parse_args()
    try:
        folder = folder_of(arguments.version, arguments.folder)
        if arguments.command == "merge":
            print(f"{folder.merge()} deltas merged in {folder.path}")
        elif arguments.command == "push" and arguments.kafka:
            path = arguments.kafka_config
            properties = delta_kafka.read_properties(path) if path else None
            count = delta_kafka.push(folder, arguments.kafka, arguments.after, properties)
            print(f"{count} deltas of {folder.path} sent to {arguments.kafka}")
        elif arguments.command == "push":
            token = arguments.token and pathlib.Path(arguments.token).read_text().strip()
            count = delta_push.push(folder, arguments.to, token, arguments.ca)
            print(f"{count} deltas of {folder.path} added at {arguments.to}")
        elif arguments.command == "version":
            made = next_version.make(
                arguments.version, read_checkpoint(arguments.weights),
                read_rows(arguments.rows) if arguments.rows else None,
                not arguments.no_golden, arguments.folder,
            )
            print(f"version {made.name} of {made.parent}")
        elif arguments.command == "easyrec":
            write_easyrec(folder, arguments)
        else:
            tables = changes_of(arguments)
            if not tables:
                print("no row differs: no delta is written")
                return 0
            known = known_tables(arguments.version)
            print(f"delta {write(folder, tables, known)} in {folder.path}")
    except (deltas.DeltaError, SafetensorError, OSError) as error:
        print(f"delta.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
