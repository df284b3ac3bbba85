"""Importing a .pt2 that holds 4 GiB of tables adds little resident memory."""

import io
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import threading
import unittest
import zipfile

import torch

from tests.e2e import support

TABLE_ROWS = 1 << 24
TABLE_DIM = 64  # 4 GiB of float32
LIMIT_MIB = 256
ZEROS = bytes(1 << 20)


class OneTable(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.EmbeddingBag(
            4, TABLE_DIM, mode="sum", include_last_offset=True
        )
        # A stand-in of the full shape: the file is filled below.
        self.table.weight = torch.nn.Parameter(
            torch.zeros(1).expand(TABLE_ROWS, TABLE_DIM), requires_grad=False
        )
        self.top = torch.nn.Linear(TABLE_DIM, 1)

    def forward(self, ids, offsets):
        return torch.sigmoid(self.top(self.table(ids, offsets)))


class WithHoles(io.FileIO):
    """Leaves holes for ZEROS: reads give the same bytes, which the disk never holds."""

    def write(self, data):
        if data is ZEROS:
            self.seek(len(data), os.SEEK_CUR)
            return len(data)
        return super().write(data)


def padding_for(archive, name, zip64):
    """Extra field after which the entry's data begins at a multiple of 64,
    where torch.export.save puts it."""
    begin = archive.fp.tell() + 30 + len(name) + (20 if zip64 else 0)
    pad = -(begin + 4) % 64
    return struct.pack("<2sH", b"FB", pad) + bytes(pad)


def write_large_archive(path):
    """A .pt2 as torch.export.save writes it, the table stored in full."""
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(
        OneTable().eval(),
        (torch.arange(5), torch.tensor([0, 2, 5])),
        dynamic_shapes=({0: torch.export.Dim("n")}, {0: batch + 1}),
    )
    small = path.with_suffix(".small.pt2")
    torch.export.save(program, small)
    with (
        zipfile.ZipFile(small) as old,
        WithHoles(path, "w") as file,
        zipfile.ZipFile(file, "w") as new,
    ):
        config_name = next(
            n for n in old.namelist() if n.endswith("model_weights_config.json")
        )
        config = json.loads(old.read(config_name))
        meta = config["config"]["table.weight"]
        table_entry = config_name.rpartition("/")[0] + "/" + meta["path_name"]
        meta["tensor_meta"]["strides"] = [{"as_int": TABLE_DIM}, {"as_int": 1}]
        for item in old.infolist():
            data = old.read(item)
            if item.filename == config_name:
                data = json.dumps(config).encode()
            info = zipfile.ZipInfo(item.filename)
            large = item.filename == table_entry
            info.extra = padding_for(new, item.filename, large)
            if not large:
                new.writestr(info, data)
                continue
            with new.open(info, "w", force_zip64=True) as out:
                for _ in range(TABLE_ROWS * TABLE_DIM * 4 // len(ZEROS)):
                    out.write(ZEROS)
    small.unlink()


def peak_private_mib(command):
    """(exit status, output, peak of RssAnon + RssShmem in MiB)."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    peak = 0
    done = threading.Event()

    def watch():
        nonlocal peak
        status = pathlib.Path(f"/proc/{process.pid}/status")
        while not done.wait(0.005):
            try:
                lines = status.read_text().splitlines()
            except OSError:
                return
            now = sum(
                int(line.split()[1])
                for line in lines
                if line.startswith(("RssAnon", "RssShmem"))
            )
            peak = max(peak, now)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = process.communicate()[0]
    done.set()
    watcher.join()
    return process.returncode, output, peak / 1024


class ImportMemory(unittest.TestCase):
    def test_four_gib_of_tables(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-memory-"))
        self.addCleanup(shutil.rmtree, folder)
        if shutil.disk_usage(folder).free < 12 << 30:
            self.skipTest("needs 12 GiB of disk for the archive and its copy")
        archive = folder / "large.pt2"
        write_large_archive(archive)
        self.assertGreater(archive.stat().st_size, 4 << 30)
        status, output, peak = peak_private_mib(
            [
                support.program("refract"), "import", str(archive),
                "--repo", str(folder / "repo"), "--name", "large",
            ]
        )
        self.assertEqual(status, 0, output)
        print(f"peak private memory {peak:.0f} MiB")
        self.assertLess(peak, LIMIT_MIB)


if __name__ == "__main__":
    unittest.main()
