"""Writes deltas of embedding tables: docs/design/deltas.md has the format.

    folder = deltas.Folder("models/ranker/1/deltas", "ranker", 1)
    folder.write({"user.weight": deltas.Rows(ids, rows)})

A delta is written aside and appears by rename, the manifest last, so that a node
never finds half of it. Writers of a folder take turns.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import re
import time

import torch
from safetensors.torch import load, save

MANIFEST = re.compile(r"delta-(\d{20})\.json")
ROWS_KEY = "refract.rows."


def name_of(sequence):
    """Of the manifest of a delta."""
    return f"delta-{sequence:020d}.json"


class DeltaError(ValueError):
    """Bad input: one line that names the file or table."""


@dataclasses.dataclass
class Rows:
    """Changes of a table. `rows`: float32 [n, dim], or the table's own dtype.

    `format`: the text of a row format ("tbe-int8 dim=64") for uint8 `rows` that
    are encoded as the table is.
    """

    ids: torch.Tensor = None
    rows: torch.Tensor = None
    deleted: torch.Tensor = None
    format: str = None

    def sorted(self, table):
        ids = torch.as_tensor([] if self.ids is None else self.ids, dtype=torch.int64)
        deleted = torch.as_tensor(
            [] if self.deleted is None else self.deleted, dtype=torch.int64
        )
        # The format wants ascending ids (docs/design/deltas.md).
        ids, order = ids.reshape(-1).sort()
        deleted = deleted.reshape(-1).sort().values
        for name, some in (("ids", ids), ("deleted", deleted)):
            if some.unique().numel() != some.numel():
                raise DeltaError(f"table '{table}': an id is twice in {name}")
        rows = None
        if ids.numel():
            rows = torch.as_tensor(self.rows)
            if rows.dim() != 2 or len(rows) != ids.numel():
                raise DeltaError(
                    f"table '{table}': rows {tuple(rows.shape)} for {ids.numel()} ids"
                )
            rows = rows.detach()[order].contiguous()
        return ids, rows, deleted


def _read_manifest(file):
    try:
        manifest = json.loads(file.read_text())
        manifest["id"], manifest["parent"]["sequence"], manifest["rows"]["file"]
    except (ValueError, KeyError, TypeError) as error:
        raise DeltaError(f"{file}: no manifest of a delta: {error}")
    return manifest


class Folder:
    """The deltas of one model version."""

    def __init__(self, path, model, version):
        self.path, self.model, self.version = pathlib.Path(path), model, int(version)

    def manifests(self):
        """All manifests, by sequence."""
        found = {}
        if not self.path.is_dir():
            return found
        for file in self.path.iterdir():
            match = MANIFEST.fullmatch(file.name)
            if match:
                found[int(match.group(1))] = _read_manifest(file)
        return dict(sorted(found.items()))

    def last(self):
        """(sequence, id) of the newest delta; (0, "") if there is none."""
        names = [f.name for f in self.path.iterdir()] if self.path.is_dir() else []
        numbers = [int(m.group(1)) for m in map(MANIFEST.fullmatch, names) if m]
        if not numbers:
            return 0, ""
        return max(numbers), _read_manifest(self.path / name_of(max(numbers)))["id"]

    def write(self, tables, created=None, parent=None, sequence=None, id=None):
        """Writes {table: Rows} as the next delta; returns its sequence.

        `created`: when the data ended, in seconds since 1970; now by default.
        `parent`: (sequence, id) of another delta than the last one.
        """
        with self.locked():
            return self._write(tables, created, parent, sequence, id)

    @contextlib.contextmanager
    def locked(self):
        """Held while the last delta is looked for and the next one added; a CPU node
        that takes deltas over gRPC holds it, too."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, tables, created, parent, sequence, id):
        parent = parent or self.last()
        sequence = sequence or parent[0] + 1
        tensors, metadata, counts = {}, {}, {}
        for table, changes in tables.items():
            ids, rows, deleted = changes.sorted(table)
            if ids.numel():
                tensors[f"{table}/ids"] = ids
                tensors[f"{table}/rows"] = rows
                if changes.format:
                    metadata[f"{ROWS_KEY}{table}/rows"] = changes.format
            if deleted.numel():
                tensors[f"{table}/deleted"] = deleted
            counts[table] = {"upserted": ids.numel(), "deleted": deleted.numel()}
        data = save(tensors, metadata or None)
        digest = hashlib.sha256(data).hexdigest()
        # Another name for other bytes: a merged delta replaces a delta that nodes read.
        name = f"delta-{sequence:020d}-{digest[:8]}.safetensors"
        manifest = {
            "format": "refract-delta",
            "schema": 1,
            "model": self.model,
            "version": self.version,
            "sequence": sequence,
            "id": id or digest,
            "parent": {"sequence": parent[0], "id": parent[1]},
            "created_unix_ms": int((time.time() if created is None else created) * 1e3),
            "rows": {"file": name, "bytes": len(data), "sha256": digest},
            "tables": counts,
        }
        # The rows first: the manifest is what nodes look for, and it must not
        # name a file that is not there.
        self._replace(name, data)
        text = json.dumps(manifest, indent=1).encode()
        self._replace(name_of(sequence), text)
        return sequence

    def _replace(self, name, data):
        aside = self.path / f".{name}.{os.getpid()}"
        # fsync before the rename, and of the folder after it: without them a
        # loss of power may leave the new name with an empty file, or lose the
        # name.
        try:
            with open(aside, "wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            os.replace(aside, self.path / name)
        except OSError as error:  # such as a full disk
            aside.unlink(missing_ok=True)
            raise DeltaError(f"{self.path / name}: {error.strerror}")
        # A delta that was reported is there after a loss of power, too.
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def read(self, manifest):
        """{table: Rows} of a manifest, checked against its sha256."""
        file = self.path / manifest["rows"]["file"]
        data = file.read_bytes()
        if hashlib.sha256(data).hexdigest() != manifest["rows"]["sha256"]:
            raise DeltaError(f"{file}: its sha256 is not the manifest's")
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        tensors = load(data)
        return {
            table: Rows(
                tensors.get(f"{table}/ids"), tensors.get(f"{table}/rows"),
                tensors.get(f"{table}/deleted"),
                metadata.get(f"{ROWS_KEY}{table}/rows"),
            )
            for table in manifest["tables"]
        }

    def merge(self):
        """Replaces the deltas from the imported tables to the last one by one
        delta with the last one's sequence and id. Returns their number.

        A row of several deltas is that of the last. Nodes that are on the way go
        on with the old files until these are gone, and then with the merged one
        only after a start: let nodes catch up first.
        """
        with self.locked():
            chain = self._chain()
            if len(chain) > 1:
                self._merge(chain)
            return len(chain)

    def merged(self, more=None):
        """{table: Rows} of all deltas, and of `more` after these."""
        return _merged([*map(self.read, self._chain()), more or {}])

    def _chain(self):
        """Manifests from the imported tables to the last delta."""
        manifests = self.manifests()
        chain, state = [], (0, "")
        while True:
            after = [
                m for m in manifests.values()
                if (m["parent"]["sequence"], m["parent"]["id"]) == state
            ]
            if not after:
                break
            # Several deltas may follow one state, for example after a merge:
            # the farthest is taken.
            chain.append(max(after, key=lambda m: m["sequence"]))
            state = (chain[-1]["sequence"], chain[-1]["id"])
        return chain

    def _merge(self, chain):
        tables = _merged(map(self.read, chain))
        last = chain[-1]
        self._write(
            tables, last["created_unix_ms"] / 1e3, (0, ""), last["sequence"], last["id"]
        )
        # The merged delta is in place before the old manifests go: a node that
        # starts in between takes it, since it leads farther than what is left
        # of the old chain.
        for manifest in chain[:-1]:
            (self.path / name_of(manifest["sequence"])).unlink()
        kept = {m["rows"]["file"] for m in self.manifests().values()}
        for manifest in chain:
            if manifest["rows"]["file"] not in kept:
                (self.path / manifest["rows"]["file"]).unlink(missing_ok=True)


def _merged(batches):
    """One {table: Rows} of many, in their order."""
    merged = {}
    for tables in batches:
        for table, changes in tables.items():
            ids, rows, deleted = changes.sorted(table)
            known, form, dtype = merged.setdefault(
                table, ({}, changes.format, None if rows is None else rows.dtype)
            )
            if rows is not None:
                kind = changes.format, rows.dtype
                if dtype is not None and (form, dtype) != kind:
                    raise DeltaError(f"table '{table}': rows of two kinds")
                merged[table] = (known, *kind)
            known.update((int(i), row) for i, row in zip(ids, rows if rows is not None else []))
            known.update((int(i), None) for i in deleted)
    tables = {}
    for table, (known, form, _) in merged.items():
        kept = [i for i, row in known.items() if row is not None]
        tables[table] = Rows(
            torch.tensor(kept, dtype=torch.int64),
            torch.stack([known[i] for i in kept]) if kept else None,
            torch.tensor([i for i, row in known.items() if row is None]),
            form,
        )
    return tables


def changed_rows(before, after, names=None, known=None):
    """{table: Rows} of the rows in which two {name: tensor} differ.

    `names`: of these tensors alone. `known`: the version's tables; other tensors, such as
    dense weights, are left out.
    """
    tables = {}
    if not names and known is not None:
        names = [name for name in known if name in before or name in after]
        if not names:
            raise DeltaError(
                f"the checkpoints have no table of the version: it has {some_of(known)}, "
                f"they have {some_of(before)}"
            )
    for name in names or before:
        if name not in before or name not in after:
            raise DeltaError(f"tensor '{name}' is not in both checkpoints")
        old, new = before[name], after[name]
        ids = f"{name}.ids"
        if ids in before and ids in after:
            changes = _changed_by_ids(old, before[ids], new, after[ids], name)
            if changes.ids.numel() or changes.deleted.numel():
                tables[name] = changes
            continue
        if old.dim() != 2 or old.shape != new.shape or old.dtype != new.dtype:
            if names or old.dim() == 2:
                raise DeltaError(
                    f"tensor '{name}' is no table of one shape and dtype in both: "
                    f"{old.dtype} {list(old.shape)}, {new.dtype} {list(new.shape)}"
                )
            continue
        ids = _differ(old, new).nonzero().reshape(-1)
        if ids.numel():
            tables[name] = Rows(ids, _floats(new[ids]))
    return tables


def some_of(names):
    names = sorted(names)
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def _differ(old, new):
    # As bytes: a NaN equals itself, and -0 differs from 0.
    return (
        old.contiguous().view(torch.uint8) != new.contiguous().view(torch.uint8)
    ).any(1)


def _floats(rows):
    return rows.float() if rows.is_floating_point() else rows


def _changed_by_ids(old, old_ids, new, new_ids, name):
    """Rows of two tables whose rows have ids, in any order and number."""
    if (
        old.dim() != 2 or old.shape[1:] != new.shape[1:] or old.dtype != new.dtype
        or len(old) != len(old_ids) or len(new) != len(new_ids)
    ):
        raise DeltaError(f"tensor '{name}' and its ids do not fit in both checkpoints")
    known, order = old_ids.sort()
    # Both tables in the order of ids: `place` is the position of each new id
    # among the old ids, `order` leads from there to the old row. Ids that the
    # old table does not have are changed in any case.
    place = torch.searchsorted(known, new_ids).clamp(max=len(known) - 1)
    changed = known[place] != new_ids
    kept = (~changed).nonzero().reshape(-1)
    changed[kept] = _differ(old[order[place[kept]]], new[kept])
    return Rows(
        new_ids[changed], _floats(new[changed]), old_ids[~torch.isin(old_ids, new_ids)]
    )
