"""scripts/gpu_check.sh and what it calls, as far as they go without a GPU."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.sh"
BENCH = ROOT / "bench" / "cuda"


def run(*command, **options):
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def row(name, median, bar, reached, side="at_most"):
    return {"name": name, "median": median, "q25": median - 0.01,
            "q75": median + 0.01, side: bar, "reached": reached}  # fmt: skip


class GpuCheck(unittest.TestCase):
    def test_wrong_usage_is_refused_with_status_2(self):
        done = run(SCRIPT, "--fast")
        self.assertEqual(done.returncode, 2)
        self.assertIn("unknown option --fast", done.stderr)
        done = run(SCRIPT, "--out")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--out needs a folder", done.stderr)

    def test_a_missing_tool_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for tool in ("bash", "dirname", "env"):
                os.symlink(f"/usr/bin/{tool}", f"{folder}/{tool}")
            done = run(SCRIPT, env={"PATH": folder})
            self.assertEqual(done.returncode, 2)
            # nvcc is looked for where toolkits lie, too.
            self.assertRegex(done.stderr, r"\A\S+: (nvcc|cmake) is missing\n\Z")

    def summarize(self, **parts):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for part, content in parts.items():
                (folder / f"{part}.json").write_text(json.dumps(content))
            done = run(sys.executable, BENCH / "summarize.py", folder)
            result = folder / "gpu_check.json"
            table = folder / "gpu_check.md"
            if done.returncode != 0:
                return done, None, None
            return done, json.loads(result.read_text()), table.read_text()

    check = {
        "device": "a GPU",
        "random_programs": 3,
        "failures": 0,
        "precision_errors": [
            {"model": "m", "precision": "fp16", "largest_score_error": 0.01}
        ],
    }

    def test_results_become_one_file_and_one_table(self):
        _, result, table = self.summarize(
            check=self.check,
            bench={"rows": [row("G1 x", 0.5, 0.6, True),
                            row("G3 y", 0.4, 0.6, False, "at_least")]},
            torch={"rows": [row("G5 z", 0.9, 1.0, True)],
                   "left_out": ["v2, batch 8192"]},
        )  # fmt: skip
        self.assertEqual(result["device"], "a GPU")
        self.assertEqual(len(result["bench"]["rows"]), 2)
        self.assertIn("| G1 x | 0.500 [0.490, 0.510] | ≤ 0.6 | reached |", table)
        self.assertIn("| ≥ 0.6 | **missed** |", table)
        self.assertIn("G5 z", table)
        self.assertIn("Left out for time: v2, batch 8192.", table)
        self.assertIn("m fp16: largest error of a score 0.01", table)

    def test_what_was_not_measured_is_said(self):
        _, result, table = self.summarize(check=self.check)
        self.assertIsNone(result["torch"])
        self.assertIn("Not measured: bench", table)
        self.assertIn("Not measured: torch", table)
        done, _, _ = self.summarize()
        self.assertEqual(done.returncode, 1)

    def test_what_a_failed_step_left_is_kept(self):
        _, result, table = self.summarize(
            torch={"device": "a GPU", "rows": [row("G5 z", 0.9, 1.0, True)],
                   "left_out": [], "failures": ["v2 fp16: out of memory"]},
        )  # fmt: skip
        self.assertEqual(result["device"], "a GPU")
        self.assertFalse(result["complete"])
        self.assertIn("G5 z", table)
        self.assertIn("The check gave no result", table)
        self.assertIn("**Failed**: v2 fp16: out of memory.", table)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "check.json").write_text(json.dumps(self.check))
            (folder / "bench.json").write_text('{"rows": [')  # cut off
            done = run(sys.executable, BENCH / "summarize.py", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("Not measured: bench", (folder / "gpu_check.md").read_text())

    def test_figures_without_a_bar_are_shown_as_such(self):
        figure = {"name": "G1 early", "median": 0.9, "q25": 0.8, "q75": 1.0}
        _, _, table = self.summarize(check=self.check, bench={"rows": [figure]})
        self.assertIn("| G1 early | 0.900 [0.800, 1.000] | none | |", table)

    def run_on_stand_ins(self, fails_with):
        """The script with programs that were "built"; the check fails where
        REFRACT_EARLY_STARTS is one of `fails_with`."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            check = json.dumps(self.check)
            bench = json.dumps({"device": "a GPU", "rows": [row("G1 x", 1, 2, True)]})
            told = folder / "told"
            write = 'while [[ $1 != --json ]]; do shift; done; cat >"$2" <<<'
            for path, text in {
                "bin/nvcc": "exit 0",
                "bin/cmake": "exit 0",
                "bin/ninja": "exit 0",
                "build/tests/device_check": f'echo "check ${{REFRACT_EARLY_STARTS-}}" '
                f">>{told}; case ${{REFRACT_EARLY_STARTS-unset}} in {fails_with}) "
                f"exit 1; esac; {write}'{check}'",
                "build/bench/bench_cuda": f'echo "bench ${{REFRACT_EARLY_STARTS-}}" '
                f">>{told}; {write}'{bench}'",
            }.items():
                program = folder / path
                program.parent.mkdir(parents=True, exist_ok=True)
                program.write_text(f"#!/bin/bash\n{text}\n")
                program.chmod(0o755)
            done = run(
                SCRIPT, "--out", folder / "out", "--build", folder / "build",
                env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}",
                     "CUDA_VISIBLE_DEVICES": "", "REFRACT_EARLY_STARTS": "faster"},
            )  # fmt: skip
            out = folder / "out"
            result = json.loads((out / "gpu_check.json").read_text())
            return done, told.read_text().split("\n")[:-1], result, (
                out / "gpu_check.md"
            ).read_text()

    def test_the_check_forces_early_starts(self):
        done, told, result, _ = self.run_on_stand_ins("nothing")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(told, ["check always", "bench "])
        self.assertEqual(result["failed"], [])

    def test_all_is_measured_without_early_starts_where_they_are_wrong(self):
        done, told, result, table = self.run_on_stand_ins("always")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(told, ["check always", "check never", "bench never"])
        self.assertEqual(result["failed"], ["early_starts"])
        self.assertFalse(result["complete"])
        self.assertIn("With early starts results are wrong", table)
        self.assertIn("early_starts.log", table)
        self.assertIn("| G1 x |", table)
        self.assertIn("3 random programs", table)

    def test_nothing_is_measured_where_results_are_wrong_anyhow(self):
        done, told, result, table = self.run_on_stand_ins("always | never")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(told, ["check always", "check never"])
        self.assertEqual(result["failed"], ["early_starts", "check"])
        self.assertIn("The check gave no result", table)

    def test_the_comparison_needs_torch_and_a_gpu(self):
        with tempfile.TemporaryDirectory() as folder:
            hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
            done = run(sys.executable, BENCH / "torch_compare.py",
                       "--library", folder, env=hidden)  # fmt: skip
        self.assertEqual(done.returncode, 77)
        self.assertIn("skipped:", done.stdout)


class TorchModule(unittest.TestCase):
    """The module that is compared with, against plain arithmetic."""

    def setUp(self):
        try:
            import torch
        except ImportError:
            self.skipTest("there is no torch")
        self.torch = torch
        torch.manual_seed(1)
        spec = importlib.util.spec_from_file_location(
            "torch_compare", BENCH / "torch_compare.py"
        )
        self.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)

    def weights(self, top_width, cross_layers):
        torch = self.torch
        weights = {}
        for prefix, sizes in (
            ("bottom", [13, 512, 256, 128]),
            ("top", [top_width, 1024, 1024, 512, 256, 1]),
        ):
            for i in range(len(sizes) - 1):
                scale = sizes[i] ** -0.5
                weights[f"{prefix}{i}_weight"] = (
                    torch.randn(sizes[i + 1], sizes[i], dtype=torch.float64) * scale
                )
                weights[f"{prefix}{i}_bias"] = torch.randn(
                    sizes[i + 1], dtype=torch.float64
                )
        for i in range(cross_layers):
            for suffix, shape in (("v", (512, top_width)), ("u", (top_width, 512))):
                weights[f"cross{i}_{suffix}_weight"] = (
                    torch.randn(*shape, dtype=torch.float64) * shape[1] ** -0.5
                )
            weights[f"cross{i}_bias"] = torch.randn(top_width, dtype=torch.float64)
        return weights

    def expected(self, w, dense, embeddings, cross_layers):
        """One item."""
        torch = self.torch
        x = dense
        for i in range(3):
            x = (w[f"bottom{i}_weight"].mv(x) + w[f"bottom{i}_bias"]).clamp(min=0)
        if cross_layers == 0:
            rows = [x] + [embeddings[128 * t : 128 * (t + 1)] for t in range(26)]
            dots = [rows[i].dot(rows[j]) for i in range(27) for j in range(i)]
            x = torch.cat([x, torch.stack(dots)])
        else:
            x0 = x = torch.cat([x, embeddings])
            for i in range(cross_layers):
                low = w[f"cross{i}_v_weight"].mv(x)
                full = w[f"cross{i}_u_weight"].mv(low) + w[f"cross{i}_bias"]
                x = x0 * full + x
        for i in range(5):
            x = w[f"top{i}_weight"].mv(x) + w[f"top{i}_bias"]
            if i < 4:
                x = x.clamp(min=0)
        return 1 / (1 + torch.exp(-x))

    def test_it_computes_both_models(self):
        torch = self.torch
        for cross_layers, width in ((0, 479), (3, 3456)):
            weights = self.weights(width, cross_layers)
            module = self.module.make_module(torch, weights, cross_layers).double()
            dense = torch.rand(3, 13, dtype=torch.float64)
            embeddings = torch.rand(3, 26 * 128, dtype=torch.float64) * 0.1
            got = module(dense, embeddings)
            for item in range(3):
                want = self.expected(
                    weights, dense[item], embeddings[item], cross_layers
                )
                # The module ends in fp32.
                self.assertLess((got[item] - want).abs().item(), 1e-6)


if __name__ == "__main__":
    unittest.main()
