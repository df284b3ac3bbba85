"""Changed rows as trainers write them, for scripts/lib/deltas.py.

    for step, tables in delta_sources.easyrec(["delta_embedding_dump"]):
        folder.write(tables)
    folder.write(delta_sources.tracked(tracker.get_unique(), model.state_dict()))

TorchEasyRec writes parquet files of schema 2; reading them needs pyarrow. TorchRec's
ModelDeltaTracker knows which rows have changed; the rows are read from the weights.
"""

import pathlib
import pickle
import re

import numpy
import torch

from scripts.lib.deltas import DeltaError, Rows

SCHEMA_KEY = b"tzrec.delta_embedding.schema_version"
GENERATION_KEY = b"tzrec.delta_embedding.dump_generation"
SCHEMA = "2"
# Reserved by TorchEasyRec: the key of no row.
INVALID_KEY = -1
SHARD = re.compile(r"_step_(\d+)(?:_rank_(\d+)_of_(\d+))?\.parquet")


# Wrappers of TorchRec that are in a tracker's names and not in those of a state dict.
WRAPPERS = re.compile(r"^_dmp_wrapped_module\.(module\.)?")


def table_of(fqn, names):
    """The table of a name in the trainer: as `names` say, else that of the state dict."""
    fqn = WRAPPERS.sub("", fqn)
    return names.get(fqn) or (fqn if fqn.endswith(".weight") else f"{fqn}.weight")


def easyrec(paths, names=None, after=None):
    """Yields (global step, {table: Rows}) of parquet files and of folders of them,
    by step; without the steps up to `after`.

    `names`: {table_fqn or embedding_name: table} of tables with other names than
    in the trainer's state dict.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise DeltaError(f"parquet files need pyarrow (pip install pyarrow): {error}")
    steps = {}
    for file in _parquet_files(paths):
        shard = _read_shard(file)
        steps.setdefault(shard["step"], []).append(shard)
    for step, shards in sorted(steps.items()):
        if after is not None and step <= after:
            continue
        _check_shards(step, shards)
        yield step, _merge_shards(shards, names or {})


def _parquet_files(paths):
    files = []
    for path in map(pathlib.Path, paths):
        if path.is_dir():
            files += sorted(path.rglob("*.parquet"))
        elif path.is_file():
            files.append(path)
        else:
            raise DeltaError(f"{path}: no file or folder")
    if not files:
        raise DeltaError(f"no *.parquet in {', '.join(map(str, paths))}")
    return files


def _read_shard(file):
    """A file's columns, checked: step, rank, world, generation, tables."""
    import pyarrow
    import pyarrow.parquet

    types = {
        "global_step": pyarrow.int64(), "rank": pyarrow.int32(),
        "world_size": pyarrow.int32(), "embedding_name": pyarrow.string(),
        "table_fqn": pyarrow.string(), "key_id": pyarrow.int64(),
        "embedding": pyarrow.list_(pyarrow.float32()),
    }
    try:
        read = pyarrow.parquet.ParquetFile(file)
        schema = read.schema_arrow
        version = (schema.metadata or {}).get(SCHEMA_KEY)
        if version is None:
            raise DeltaError(f"{file}: no delta of TorchEasyRec: its metadata have no "
                             f"{SCHEMA_KEY.decode()}")
        if version.decode(errors="replace") != SCHEMA:
            raise DeltaError(f"{file}: {SCHEMA_KEY.decode()} is "
                             f"'{version.decode(errors='replace')}'; this version reads "
                             f"'{SCHEMA}'")
        for name, wanted in types.items():
            if name not in schema.names:
                raise DeltaError(f"{file}: column '{name}' is missing")
            found = schema.field(name).type
            # The element of a list may have any name.
            same = found == wanted or (
                pyarrow.types.is_list(found) and pyarrow.types.is_list(wanted)
                and found.value_type == wanted.value_type
            )
            if not same:
                raise DeltaError(f"{file}: column '{name}' is {found}; wanted {wanted}")
        names = [*types, *({"operation"} & set(schema.names))]
        columns = read.read(names).combine_chunks()
    except (pyarrow.ArrowException, OSError) as error:
        raise DeltaError(f"{file}: no parquet file, or damaged: {error}")
    for name in names:
        if columns.column(name).null_count:
            raise DeltaError(f"{file}: column '{name}' has nulls")
    for operation in columns.column("operation").unique().to_pylist() if (
        "operation" in names
    ) else []:
        if operation != "UPSERT":
            raise DeltaError(f"{file}: operation '{operation}'; this version reads UPSERT")
    named = SHARD.search(file.name)
    shard = {
        "file": file,
        "generation": (schema.metadata or {}).get(GENERATION_KEY),
        # A rank whose rows did not change writes a file without rows.
        "step": _only(file, columns, "global_step", named and int(named[1])),
        "rank": _only(file, columns, "rank", int(named[2] or 0) if named else None),
        "world": _only(file, columns, "world_size", int(named[3] or 1) if named else None),
        "tables": {},
    }
    # One file has the rows of several tables of its rank.
    pairs = columns.group_by(["table_fqn", "embedding_name"]).aggregate([])
    for fqn, embedding in zip(*(pairs.column(c).to_pylist() for c in pairs.column_names)):
        compute = pyarrow.compute
        chosen = columns.filter(compute.and_(
            compute.equal(columns.column("table_fqn"), fqn),
            compute.equal(columns.column("embedding_name"), embedding),
        ))
        shard["tables"][fqn, embedding] = _rows(file, fqn, chosen)
    return shard


def _only(file, columns, name, of_the_name):
    values = columns.column(name).unique().to_pylist()
    if len(values) > 1:
        raise DeltaError(f"{file}: column '{name}' has {len(values)} values; wanted one")
    if not values and of_the_name is None:
        raise DeltaError(f"{file}: has no rows, and its name says no step and rank")
    return values[0] if values else of_the_name


def _rows(file, fqn, columns):
    """(ids, rows) of one table in one file."""
    ids = columns.column("key_id").to_numpy()
    lists = columns.column("embedding").combine_chunks()
    widths = numpy.asarray(lists.value_lengths())
    width = int(widths[0])
    where = f"{file}: table '{fqn}'"
    if (widths != width).any() or width == 0:
        at = int((widths != width).argmax())
        raise DeltaError(f"{where}: the row of id {ids[at]} has {widths[at]} elements, "
                         f"that of id {ids[0]} has {width}")
    if (ids == INVALID_KEY).any():
        raise DeltaError(f"{where}: key_id {INVALID_KEY} is that of no row")
    values = lists.flatten()
    if values.null_count:
        raise DeltaError(f"{where}: a row has nulls")
    rows = values.to_numpy().reshape(-1, width)
    if not numpy.isfinite(rows).all():
        row, column = numpy.argwhere(~numpy.isfinite(rows))[0]
        raise DeltaError(f"{where}: row of id {ids[row]}: column {column} is "
                         f"{rows[row, column]}")
    return ids, rows


def _check_shards(step, shards):
    """All ranks of one dump, each once: half a dump must not be served."""
    first = shards[0]
    ranks = {}
    for shard in shards:
        for part in ("world", "generation"):
            if shard[part] != first[part]:
                raise DeltaError(
                    f"step {step}: {first['file']} and {shard['file']} are of two dumps: "
                    f"{'world_size' if part == 'world' else 'dump_generation'} "
                    f"{first[part]} and {shard[part]}"
                )
        if shard["rank"] in ranks:
            raise DeltaError(f"step {step}: {ranks[shard['rank']]} and {shard['file']} "
                             f"are both of rank {shard['rank']}")
        ranks[shard["rank"]] = shard["file"]
    missing = [rank for rank in range(first["world"]) if rank not in ranks]
    if missing:
        raise DeltaError(f"step {step}: the file of rank {missing[0]} of "
                         f"{first['world']} is missing")


def _merge_shards(shards, names):
    parts = {}
    for shard in shards:
        for (fqn, embedding), rows in shard["tables"].items():
            name = embedding if embedding in names else fqn
            parts.setdefault(table_of(name, names), []).append((shard["file"], *rows))
    return {table: _merge_parts(table, found) for table, found in parts.items()}


def _merge_parts(table, parts):
    """Rows of a table from several files. Ranks of a data-parallel table write the
    same rows: these are kept once."""
    width = parts[0][2].shape[1]
    for file, _, rows in parts:
        if rows.shape[1] != width:
            raise DeltaError(f"{file}: table '{table}' has rows of {rows.shape[1]} "
                             f"elements; those in {parts[0][0]} have {width}")
    ids = numpy.concatenate([part[1] for part in parts])
    rows = numpy.concatenate([part[2] for part in parts])
    # Sorted, so that equal ids of several files are neighbours.
    order = numpy.argsort(ids, kind="stable")
    ids, rows = ids[order], rows[order]
    twice = numpy.flatnonzero(ids[1:] == ids[:-1]) + 1
    differ = twice[(rows[twice] != rows[twice - 1]).any(1)]
    if differ.size:
        raise DeltaError(f"table '{table}': id {ids[differ[0]]} is there twice with "
                         "different rows")
    return Rows(*map(torch.from_numpy, (numpy.delete(ids, twice), numpy.delete(rows, twice, 0))))


def tracked(unique, weights, names=None, offsets=None):
    """{table: Rows} of the ids that TorchRec's ModelDeltaTracker has tracked.

    `unique`: what get_unique() or get_unique_ids() returns: {fqn: UniqueRows or ids}.
    Its states are not used: TorchRec keeps the values before the update, or those of
    the optimizer. `weights`: {name: tensor} after the update, as state_dict() has it;
    of a table divided by rows, the local part. `offsets`: {fqn: first row} of such
    parts, whose ids are local. `names`: {fqn: table} as for easyrec().
    """
    tables = {}
    for fqn, found in unique.items():
        ids = getattr(found, "ids", found)
        if not torch.is_tensor(ids) or ids.is_floating_point():
            raise DeltaError(f"'{fqn}': no tensor of ids")
        ids = ids.detach().cpu().reshape(-1).to(torch.int64).unique()
        name = fqn if fqn in weights else table_of(fqn, {})
        if name not in weights:
            raise DeltaError(f"'{fqn}': the weights have no tensor '{name}'")
        weight = _local(name, weights[name])
        if weight.dim() != 2:
            raise DeltaError(f"tensor '{name}' is no table: {tuple(weight.shape)}")
        outside = ids[(ids < 0) | (ids >= len(weight))]
        if outside.numel():
            raise DeltaError(f"'{fqn}': id {int(outside[0])} is outside the "
                             f"{len(weight)} rows of '{name}'")
        if not ids.numel():
            continue
        rows = weight.detach()[ids.to(weight.device)].cpu()
        rows = rows.float() if rows.is_floating_point() else rows
        if not torch.isfinite(rows.float()).all():
            row, column = (~torch.isfinite(rows.float())).nonzero()[0].tolist()
            raise DeltaError(f"tensor '{name}': row of id {int(ids[row])}: column "
                             f"{column} is {rows[row, column]}")
        tables[table_of(fqn, names or {})] = Rows(ids + (offsets or {}).get(fqn, 0), rows)
    return tables


def _local(name, weight):
    """The part of a sharded tensor that this process has."""
    if hasattr(weight, "local_shards"):
        shards = weight.local_shards()
        if len(shards) != 1:
            raise DeltaError(f"tensor '{name}' has {len(shards)} local shards; wanted one")
        return shards[0].tensor
    if hasattr(weight, "to_local"):
        return _local(name, weight.to_local())
    return weight


def load_tracked(path):
    """What torch.save() kept of get_unique() or get_unique_ids()."""
    load = lambda: torch.load(path, map_location="cpu", weights_only=True)
    try:
        try:
            found = load()
        except pickle.UnpicklingError as error:
            # States beside the ids: of a class of TorchRec, whose import takes seconds.
            try:
                from torchrec.distributed.model_tracker.types import UniqueRows
            except ImportError:
                raise error
            with torch.serialization.safe_globals([UniqueRows]):
                found = load()
    except Exception as error:  # of many kinds
        raise DeltaError(f"{path}: cannot be read: {str(error).splitlines()[0]}")
    if not isinstance(found, dict):
        raise DeltaError(f"{path}: no result of get_unique() or get_unique_ids()")
    return found
