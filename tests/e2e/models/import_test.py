"""What refract import leaves behind and says, as a user meets it."""

import fcntl
import json
import os
import pathlib
import pty
import subprocess
import tempfile
import unittest

import torch

from models.zoo import safetensors_io
from tests.e2e import support


class Pooled(torch.nn.Module):
    """A history of its own length beside the batch."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.EmbeddingBag(
            50, 4, mode="sum", include_last_offset=True
        )
        self.top = torch.nn.Linear(6, 1)

    def forward(self, dense, hist, offsets):
        return self.top(torch.cat([dense, self.table(hist, offsets)], dim=1))


def request(batch, per_item=3):
    return {
        "dense": torch.randn(batch, 2),
        "hist": torch.arange(per_item * batch) % 50,
        "offsets": per_item * torch.arange(batch + 1),
    }


class Import(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="refract_import_")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        batch, history = torch.export.Dim("batch"), torch.export.Dim("hist_n")
        program = torch.export.export(
            Pooled(), tuple(request(4).values()),
            dynamic_shapes=({0: batch}, {0: history}, {0: batch + 1}),
        )
        cls.model = cls.folder / "m.pt2"
        torch.export.save(program, cls.model)
        cls.sample = cls.folder / "sample.safetensors"
        safetensors_io.write(cls.sample, request(4))

    def run_import(self, repository, *arguments, **kwargs):
        return support.refract(
            "import", self.model, "--repo", repository, "--name", "m", "--sample",
            self.sample, "--no-golden", *arguments, **kwargs,
        )

    def test_what_an_interrupted_import_left_is_removed(self):
        repository = self.folder / "interrupted"
        gone, live = repository / "m/.tmp-gone00", repository / "m/.tmp-live00"
        for folder in (gone, live):
            folder.mkdir(parents=True)
            (folder / "model.pt2").write_bytes(bytes(1 << 20))
        # The lock that a process holds while it works there.
        lock = os.open(live, os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = self.run_import(repository)
        self.assertIn(f"removed {gone}, 1.0 MiB", done.stdout)
        self.assertFalse(gone.exists())
        self.assertTrue((live / "model.pt2").exists())
        self.assertEqual(
            sorted(entry.name for entry in (repository / "m").iterdir()),
            [".tmp-live00", "1", "config.pbtxt"],
        )
        self.assertNotIn("removed", self.run_import(repository).stdout)

    def test_a_terminal_sees_progress(self):
        primary, secondary = pty.openpty()
        self.addCleanup(os.close, primary)
        with subprocess.Popen(
            [
                support.program("refract"), "import", self.model, "--repo",
                self.folder / "progress", "--name", "m", "--sample", self.sample,
                "--no-golden",
            ],
            stdout=subprocess.PIPE, stderr=secondary, text=True,
        ) as process:
            os.close(secondary)
            shown = b""
            while True:
                try:
                    some = os.read(primary, 4096)
                except OSError:  # all writers are gone
                    break
                if not some:
                    break
                shown += some
            self.assertIn("imported", process.stdout.read())
        text = shown.decode()
        for step in (f"reading {self.model}", "running the sample", "copying "):
            self.assertIn(step, text)
        # The line of progress is cleared at the end.
        self.assertTrue(text.endswith("\033[K"), repr(text[-40:]))

    def test_sizes_are_called_as_inputs(self):
        repository = self.folder / "names"
        done = self.run_import(repository, "--json", "-")
        self.assertEqual(json.loads(done.stdout)["version"], 1)
        told = support.refract("inspect", repository / "m").stdout
        self.assertRegex(told, r"(?m)^  dense +float32 +\[batch, 2\]")
        self.assertRegex(told, r"(?m)^  hist +int64 +\[hist\]")
        self.assertRegex(told, r"(?m)^  offsets +int64 +\[batch \+ 1\]")
        self.assertIn("hist 3 (the import's sample)", told)
        told = support.refract("inspect", repository / "m", "--size", "hist=7").stdout
        self.assertIn("hist 7 (--size)", told)
        # Named or not, the scores are PyTorch's.
        x, y = self.folder / "x.safetensors", self.folder / "y.safetensors"
        tensors = request(5, 2)
        safetensors_io.write(x, tensors)
        support.refract("run", repository / "m", "--inputs", x, "--outputs", y)
        program = torch.export.load(self.model)
        torch.testing.assert_close(
            safetensors_io.read(y)["output_0"], program.module()(*tensors.values()).detach(),
            rtol=0, atol=1e-5,
        )

    def test_sizes_that_data_decide_need_not_show_in_the_sample(self):
        class Masked(torch.nn.Module):
            def forward(self, x, length):
                present = length > 0
                return torch.zeros(x.shape[0]).masked_scatter(present, x[present].sum(1))

        x, length = torch.randn(5, 3), torch.tensor([2, 1, 3, 1, 2])
        shown = length * (length > 1)
        request = self.folder / "masked.safetensors"
        safetensors_io.write(request, {"x": x, "length": shown})
        traced = self.folder / "masked.pt"
        torch.jit.save(torch.jit.trace(Masked(), (x, length)), str(traced))
        for name, lengths in (("hidden", length), ("shown", shown)):
            sample = self.folder / f"{name}.safetensors"
            safetensors_io.write(sample, {"x": x, "length": lengths})
            done = support.refract(
                "import", traced, "--repo", self.folder / "masked", "--name", name,
                "--sample", sample,
            )
            noted = "the data decide a size of node" in done.stdout + done.stderr
            self.assertFalse(noted, done.stdout + done.stderr)
            out = self.folder / "masked.out"
            support.refract(
                "run", self.folder / "masked" / name, "--inputs", request, "--outputs", out
            )
            answer = safetensors_io.read(out)["output_0"]
            torch.testing.assert_close(answer, Masked()(x, shown))

    def test_values_that_are_no_numbers_are_named(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                # More than the 4 MiB that import reads at a time.
                self.user = torch.nn.Embedding(40_000, 33)
                self.item = torch.nn.Embedding(50, 4)
                self.register_buffer("mask", torch.tensor([0, -torch.inf]))
                head, tail = torch.zeros(4, 2).split(2)  # of one storage
                self.register_buffer("head", head)
                self.register_buffer("tail", tail)
                self.top = torch.nn.Linear(37, 2)

            def forward(self, user, item):
                rows = torch.cat([self.user(user), self.item(item)], dim=1)
                return self.top(rows) + self.mask + self.head[0] + self.tail[0]

        module = Model().eval()
        x = torch.arange(4)
        shapes = ({0: torch.export.Dim("batch")},) * 2
        sample = self.folder / "numbers.safetensors"
        safetensors_io.write(sample, {"user": x, "item": x})

        def notes(name, *arguments):
            file = self.folder / f"{name}.pt2"
            torch.export.save(torch.export.export(module, (x, x), dynamic_shapes=shapes), file)
            done = support.refract(
                "import", file, "--repo", self.folder / "numbers", "--name", name,
                "--sample", sample, "--no-golden", *arguments,
            )
            return [line for line in done.stdout.splitlines() if "NaN" in line]

        self.assertEqual(notes("finite"), [])
        with torch.no_grad():
            module.user.weight[31_000:32_500] = torch.nan  # over the end of a piece
            module.item.weight[49, 3] = -torch.inf
            module.item.weight[7, 0] = torch.inf
            module.top.bias[1] = torch.nan
            module.tail[1] = torch.nan
        wanted = [
            "note: table item.weight: 2 of 50 rows hold a NaN or an infinity, the first is row 7",
            "note: table user.weight: 1500 of 40000 rows hold a NaN or an infinity, "
            "the first is row 31000",
            "note: weight tail holds a NaN",
            "note: weight top.bias holds a NaN",
        ]
        self.assertEqual(sorted(notes("odd")), wanted)
        self.assertEqual(sorted(notes("linked", "--link")), wanted)
        tables = self.folder / "number_tables"
        tables.mkdir()
        safetensors_io.write(tables / "t.safetensors", {
            "item.weight": module.item.weight.detach().half(),
            "user.weight": torch.zeros(40_000, 33),
        })
        del wanted[1]
        self.assertEqual(sorted(notes("halves", "--tables", tables)), wanted)

    def test_a_folder_of_sources_is_no_repository(self):
        sources = self.folder / "models"
        (sources / "graph").mkdir(parents=True)
        (sources / "CMakeLists.txt").write_text("")
        done = self.run_import(sources)
        self.assertIn(f"warning: --repo {sources} holds CMakeLists.txt and 1 other",
                      done.stderr)
        self.assertIn(f"goes into {sources}/m", done.stderr)
        # The repository holds a model by now.
        self.assertEqual(self.run_import(sources).stderr, "")
        self.assertEqual(self.run_import(self.folder / "fresh").stderr, "")


if __name__ == "__main__":
    unittest.main()
