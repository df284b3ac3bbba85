"""Bad files and command lines: exit 2 and one line that names the culprit."""

import json
import pathlib
import shutil
import struct
import tempfile
import unittest
import zipfile

import torch
from safetensors.torch import load_file, save_file

from tests.e2e import support


class BadFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="refract-files-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.source = support.export("wide_deep", cls.folder / "wide_deep")
        cls.repository = cls.folder / "repo"
        support.add_model(
            cls.repository, "good", cls.source / "wide_deep.pt2"
        )

    def refuse(self, *arguments, naming):
        done = support.refract(*arguments, check=False)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        for word in naming:
            self.assertIn(str(word), lines[0])

    def refuse_import(self, file, *naming, tables=None):
        tables = self.source / "tables" if tables is None else tables
        sample = self.source / "sample.safetensors"
        self.refuse(
            "import", file, "--repo", self.folder / "other", "--name", "m",
            "--tables", tables, "--sample", sample,
            naming=naming or (file,),
        )
        self.assertFalse(
            (self.folder / "other" / "m" / "1").exists(),
            "a refused model leaves nothing behind",
        )

    def test_truncated_archives(self):
        for suffix in ("pt2", "pt"):
            data = (self.source / f"wide_deep.{suffix}").read_bytes()
            for part in (0, 0.1, 0.5, 0.9, 0.999):
                file = self.folder / f"cut.{suffix}"
                file.write_bytes(data[: int(len(data) * part)])
                self.refuse_import(file)

    def test_foreign_files(self):
        file = self.folder / "foreign.pt2"
        file.write_bytes(b"\x7fELF" + bytes(1000))
        self.refuse_import(file)
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("hello.txt", "world")
        self.refuse_import(file)
        torch.save({"a": torch.zeros(3)}, self.folder / "state.pt")
        self.refuse_import(self.folder / "state.pt")
        self.refuse_import(self.folder / "absent.pt2")
        self.refuse_import(self.folder)

    def test_newer_schema(self):
        file = self.folder / "newer.pt2"
        with zipfile.ZipFile(self.source / "wide_deep.pt2") as old:
            with zipfile.ZipFile(file, "w") as new:
                for item in old.infolist():
                    data = old.read(item)
                    if item.filename.endswith("models/model.json"):
                        model = json.loads(data)
                        model["schema_version"]["major"] = 9
                        data = json.dumps(model)
                    new.writestr(item.filename, data)
        self.refuse_import(file, file, "9")

    def test_bad_tables(self):
        tables = self.folder / "tables"

        def fresh():
            shutil.rmtree(tables, ignore_errors=True)
            shutil.copytree(self.source / "tables", tables)
            return sorted(tables.glob("*.safetensors"))[0]

        first = fresh()
        with open(first, "r+b") as file:
            file.truncate(first.stat().st_size - 4)
        self.refuse_import(self.source / "wide_deep.pt2", first, tables=tables)
        first = fresh()
        with open(first, "ab") as file:
            file.write(b"surplus!")
        self.refuse_import(self.source / "wide_deep.pt2", first, tables=tables)
        first = fresh()
        first.write_bytes(struct.pack("<Q", 2**60) + b"{}")
        self.refuse_import(self.source / "wide_deep.pt2", first, tables=tables)
        first = fresh()
        content = load_file(first)
        name = sorted(content)[0]
        content[name] = torch.cat([content[name], content[name]])
        save_file(content, first)
        self.refuse_import(
            self.source / "wide_deep.pt2", first, name, tables=tables
        )
        first = fresh()
        first.unlink()
        self.refuse_import(
            self.source / "wide_deep.pt2", "weight", tables=tables
        )

    def test_table_file_that_changed_after_import(self):
        copy = self.folder / "changed"
        shutil.copytree(self.repository, copy)
        table = sorted((copy / "good" / "1" / "tables").glob("*"))[0]
        with open(table, "r+b") as file:
            file.truncate(table.stat().st_size // 2)
        self.refuse("inspect", copy / "good", naming=(table.name,))

    def test_plan_of_another_model(self):
        support.export("wide_deep", self.folder / "second", "--seed", "9")
        support.add_model(
            self.folder / "repo2", "good",
            self.folder / "second" / "wide_deep.pt2",
        )
        copy = self.folder / "mixed"
        shutil.copytree(self.repository, copy)
        plan = copy / "good" / "1" / "split_plan.pb"
        shutil.copy(self.folder / "repo2" / "good" / "1" / plan.name, plan)
        inputs = self.source / "sample.safetensors"
        self.refuse(
            "run", copy / "good", "--mode", "split", "--inputs", inputs,
            "--outputs", self.folder / "out.safetensors", naming=(plan.name,),
        )
        plan.write_bytes(b"\xff" * 100)
        self.refuse(
            "run", copy / "good", "--mode", "split", "--inputs", inputs,
            "--outputs", self.folder / "out.safetensors", naming=(plan.name,),
        )

    def test_specialised_trace(self):
        class Specialised(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(8, 4)

            def forward(self, x):
                y = self.linear(x)
                # len() makes the traced batch a constant.
                y = y.view(len(x), 2, 2)
                return torch.sigmoid(y.sum(dim=(1, 2)))

        x = torch.randn(6, 8)
        traced = torch.jit.freeze(torch.jit.trace(Specialised().eval(), x))
        file = self.folder / "specialised.pt"
        traced.save(file)
        save_file({"x": x}, self.folder / "x.safetensors")
        self.refuse(
            "import", file, "--repo", self.folder / "other", "--name", "s",
            "--sample", self.folder / "x.safetensors", naming=("view", "6"),
        )

    def test_bad_command_lines(self):
        self.refuse("nonsense", naming=("nonsense",))
        self.refuse("run", self.repository / "good", naming=("--inputs",))
        self.refuse("inspect", self.repository / "absent", naming=("absent",))
        self.refuse(
            "partition", self.repository / "good", "--method", "magic",
            naming=("magic",),
        )
        self.refuse(
            "run", self.repository / "good", "--inputs",
            self.folder / "absent.safetensors", "--outputs",
            self.folder / "out.safetensors", naming=("absent.safetensors",),
        )

    def test_daemons_refuse_what_they_cannot_use(self):
        for name in ("refract-cpu-node", "refract-gpu-node"):
            for arguments in (
                ["--model-repository", self.folder / "nowhere"],
                ["--nonsense"],
            ):
                if name == "refract-cpu-node":
                    arguments = [*arguments, "--gpu-nodes", "127.0.0.1:1"]
                done = support.start_once(
                    support.program(name), *arguments, check=False
                )
                self.assertEqual(done.returncode, 2, done.stderr)


if __name__ == "__main__":
    unittest.main()
