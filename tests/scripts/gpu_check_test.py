"""scripts/gpu_check.sh and its scripts, as far as they go without a GPU."""

import importlib.util
import json
import os
import pathlib
import signal
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


# Seconds. A stand-in starts in 0.1 s, on a busy machine in 2 s.
LONGER_THAN_A_START = "6"


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
        "parts": {
            "random_programs": {"outcome": "ok", "random_programs": 3, "failures": 0},
            "dlrm_v1": {"outcome": "ok", "m fp16 score error": 0.01},
        },
    }  # fmt: skip

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
        self.assertIn("- m fp16 score error: 0.010000", table)

    def test_what_was_not_measured_is_said(self):
        _, result, table = self.summarize(check=self.check)
        self.assertIsNone(result["torch"])
        self.assertIn("Not done: bench", table)
        self.assertIn("Not done: torch", table)
        done, _, _ = self.summarize()
        self.assertEqual(done.returncode, 1)

    def test_what_a_failed_step_left_is_kept(self):
        _, result, table = self.summarize(
            torch={"device": "a GPU", "rows": [row("G5 z", 0.9, 1.0, True)],
                   "left_out": [], "parts": {"v2": {
                       "outcome": "failed", "output": ["FAILED: out of memory"]}}},
        )  # fmt: skip
        self.assertEqual(result["device"], "a GPU")
        self.assertFalse(result["complete"])
        self.assertIn("G5 z", table)
        self.assertIn("No part of the check passed", table)
        self.assertIn("FAILED: out of memory", table)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "check.json").write_text(json.dumps(self.check))
            (folder / "bench.json").write_text('{"rows": [')  # cut off
            done = run(sys.executable, BENCH / "summarize.py", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("Not done: bench", (folder / "gpu_check.md").read_text())

    def test_what_is_no_number_costs_no_other_figure(self):
        nothing = {"name": "G2 x", "median": None, "q25": None, "q75": None,
                   "at_most": 2, "reached": False}  # fmt: skip
        _, _, table = self.summarize(
            check=self.check,
            bench={"rows": [nothing, row("G1 y", 0.5, 0.6, True)]},
        )
        self.assertIn("| G2 x | – [–, –] | ≤ 2 | **missed** |", table)
        self.assertIn("| G1 y | 0.500", table)

    def test_a_copy_without_history_can_be_told_its_revision(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "check.json").write_text(json.dumps(self.check))
            run(sys.executable, BENCH / "summarize.py", folder,
                env={**os.environ, "REFRACT_REVISION": "abc123"})  # fmt: skip
            result = json.loads((folder / "gpu_check.json").read_text())
            self.assertEqual(result["revision"], "abc123")

    # Stands in for the three programs. FAULTS: "PART KIND", a line each.
    STAND_IN = """
import json, os, signal, sys, time
me, arguments = sys.argv[1], sys.argv[2:]
parts = {"check": ["programs", "dlrm"], "bench": ["limits", "graphs", "overlap"],
         "torch": ["eager"]}[me]
faults = dict(fault.split() for fault in os.environ["FAULTS"].splitlines())
if "--list" in arguments:
    if faults.get(f"{me}_list") == "hung":
        time.sleep(600)
    print("\\n".join(parts))
    sys.exit(0)
with open(os.environ["TOLD"], "a") as told:
    print(me, arguments[arguments.index("--parts") + 1], file=told)
print('= {"device": "a GPU"}')
for part in arguments[arguments.index("--parts") + 1].split(","):
    print("--", part, flush=True)
    kind = faults.get(part)
    if kind == "slow":
        for i in range(16):
            print("..", i, "of 16", flush=True)
            time.sleep(0.4)
    elif kind is not None:
        print("FAILED:", part, "is", kind, flush=True)
        if kind == "hung":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        if kind == "dead":
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind != "wrong":
            sys.exit(77 if kind == "skipped" else 3 if kind == "imprecise" else 1)
    print("=", json.dumps({"facts": 1}))
    print("=", json.dumps({"name": "row of " + part, "median": 1, "q25": 1, "q75": 1}))
sys.exit(1 if "wrong" in [faults.get(part) for part in parts] else 0)
"""

    def run_on_stand_ins(self, *faults, limits=(), with_torch=False, compare=False):
        """The script with programs that were "built"; with `limits`, its middle.
        compare: the script starts its comparison with PyTorch, which takes seconds to
        find no GPU; else a program that finds none at once."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "stand_in.py").write_text(self.STAND_IN)
            told = folder / "told"
            call = f"exec {sys.executable} {folder}/stand_in.py"
            for path, text in {
                "bin/nvcc": "exit 0",
                "bin/cmake": "exit 0",
                "bin/ninja": "exit 0",
                "bin/nvidia-smi": "exit 1",
                "build/tests/device_check": f'{call} check "$@"',
                "build/bench/bench_cuda": f'{call} bench "$@"',
            }.items():
                program = folder / path
                program.parent.mkdir(parents=True, exist_ok=True)
                program.write_text(f"#!/bin/bash\n{text}\n")
                program.chmod(0o755)
            if not compare:
                program = folder / "bin" / "python3"
                program.write_text(
                    "#!/bin/bash\n[[ $1 != bench/cuda/torch_compare.py ]] || exit 77\n"
                    f'exec {sys.executable} "$@"\n'
                )
                program.chmod(0o755)
            environment = {
                **os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}",
                "CUDA_VISIBLE_DEVICES": "", "TOLD": str(told),
                "FAULTS": "\n".join(faults),
            }  # fmt: skip
            out = folder / "out"
            if limits:
                done = run(
                    sys.executable, BENCH / "run_parts.py", "--out", out,
                    "--check", f"{folder}/build/tests/device_check",
                    "--bench", f"{folder}/build/bench/bench_cuda",
                    *(["--torch", f"{call} torch"[5:]] if with_torch else []), *limits,
                    env=environment,
                )  # fmt: skip
            else:
                done = run(
                    SCRIPT, "--out", out, "--build", folder / "build", env=environment
                )
            lines = told.read_text().splitlines() if told.exists() else []
            if not (out / "gpu_check.json").exists():
                return done, lines, None, ""
            return (
                done, lines, json.loads((out / "gpu_check.json").read_text()),
                (out / "gpu_check.md").read_text(),
            )  # fmt: skip

    def rows(self, result):
        return [row["name"] for row in result["bench"]["rows"]]

    ALL_ROWS = ["row of limits", "row of graphs", "row of overlap"]

    def test_where_all_is_well_each_program_runs_once(self):
        done, told, result, table = self.run_on_stand_ins(compare=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(told, ["check programs,dlrm", "bench limits,graphs,overlap"])
        self.assertEqual(result["failed"], [])
        self.assertEqual(self.rows(result), self.ALL_ROWS)
        self.assertEqual(result["device"], "a GPU")
        self.assertEqual(result["check"]["parts"]["dlrm"]["facts"], 1)
        self.assertIn("2 of 2 parts of the check passed.", table)

    def test_what_hangs_or_dies_costs_only_itself(self):
        done, told, result, table = self.run_on_stand_ins(
            "programs dead", "graphs hung", limits=["--part-s", LONGER_THAN_A_START]
        )
        self.assertEqual(done.returncode, 1)
        parts = result["check"]["parts"]
        self.assertEqual(parts["programs"]["outcome"], "died of SIGSEGV")
        self.assertEqual(parts["dlrm"]["outcome"], "ok")
        self.assertEqual(told[1:], ["check dlrm", "bench limits,graphs,overlap",
                                    "bench overlap"])  # fmt: skip
        self.assertEqual(self.rows(result), ["row of limits", "row of overlap"])
        self.assertIn("did not end within", result["bench"]["parts"]["graphs"]["outcome"])
        self.assertEqual(result["failed"], ["check of programs", "bench of graphs"])
        self.assertIn("**Failed**: check of programs: died of SIGSEGV.", table)
        self.assertIn("**Failed**: bench of graphs", table)

    def test_a_part_that_fails_and_goes_on_is_named(self):
        done, told, result, _ = self.run_on_stand_ins("graphs wrong")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(told), 2)
        self.assertEqual(result["failed"], ["bench of graphs"])
        self.assertEqual(result["bench"]["parts"]["overlap"]["outcome"], "ok")
        self.assertEqual(self.rows(result), self.ALL_ROWS)

    def test_what_says_that_it_goes_on_is_waited_for(self):
        done, told, result, _ = self.run_on_stand_ins(
            "programs slow", limits=["--part-s", LONGER_THAN_A_START]
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(told), 2)
        self.assertGreater(result["check"]["parts"]["programs"]["seconds"], 6)

    def test_a_measurement_that_fails_leaves_the_others(self):
        done, told, result, table = self.run_on_stand_ins("limits failed")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.rows(result), ["row of graphs", "row of overlap"])
        self.assertEqual(told[-1], "bench graphs,overlap")
        self.assertEqual(result["failed"], ["bench of limits"])

    def test_small_excesses_of_a_tolerance_are_said_to_be_small(self):
        done, _, _, table = self.run_on_stand_ins("programs imprecise")
        self.assertEqual(done.returncode, 1)
        self.assertIn("slightly larger errors than allowed", table)
        self.assertNotIn("mean nothing", table)

    def test_figures_come_even_where_nothing_passes(self):
        done, _, result, table = self.run_on_stand_ins("programs failed", "dlrm failed")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.rows(result), self.ALL_ROWS)
        self.assertIn("No part of the check passed: no figure below means", table)

    def test_what_time_is_short_for_is_named(self):
        _, _, result, table = self.run_on_stand_ins(limits=["--limit-s", "1"])
        self.assertEqual(result["check"]["left_out"], ["programs", "dlrm"])
        self.assertFalse(result["complete"])
        self.assertIn("Left out for time: limits.", table)

    def test_a_gpu_that_is_gone_is_a_failure(self):
        done, _, result, table = self.run_on_stand_ins("dlrm skipped")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(result["failed"], ["check of dlrm"])
        self.assertEqual(self.rows(result), self.ALL_ROWS)
        self.assertIn("check of dlrm: saw no GPU", table)

    def test_a_program_that_cannot_even_list_its_parts_costs_only_itself(self):
        for program, other in (("check", "bench"), ("bench", "check")):
            with self.subTest(program):
                done, _, result, table = self.run_on_stand_ins(
                    f"{program}_list hung", limits=["--part-s", LONGER_THAN_A_START]
                )
                self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                self.assertEqual(result["failed"], [program])
                self.assertIsNone(result[program])
                self.assertIsNotNone(result[other])
                self.assertIn(f"Not done: {program}", table)

    def test_a_part_that_the_share_ends_in_is_left_out(self):
        done, _, result, _ = self.run_on_stand_ins("dlrm hung", limits=["--check-s", "6"])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(result["check"]["left_out"], ["dlrm"])
        self.assertEqual(result["failed"], [])
        self.assertEqual(self.rows(result), self.ALL_ROWS)

    def test_however_long_others_take_there_is_time_for_the_comparison(self):
        done, _, result, _ = self.run_on_stand_ins(
            "dlrm hung", "overlap hung", with_torch=True,
            limits=["--limit-s", "49", "--least-bench-s", "8", "--torch-s", "33"],
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(result["check"]["left_out"], ["dlrm"])
        self.assertEqual(self.rows(result), ["row of limits", "row of graphs"])
        self.assertEqual(result["bench"]["left_out"], ["overlap"])
        self.assertEqual([row["name"] for row in result["torch"]["rows"]],
                         ["row of eager"])  # fmt: skip

    def test_what_runs_ends_with_the_script(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            program = folder / "device_check"
            program.write_text(
                '#!/bin/bash\n[[ $* != *--list* ]] || { echo one; exit; }\n'
                "echo -- one\nexec sleep 600\n"
            )
            program.chmod(0o755)
            script = subprocess.Popen(
                [sys.executable, BENCH / "run_parts.py", "--out", folder / "out",
                 "--check", program, "--bench", program],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            with script:
                while script.stdout.readline() != "-- one\n":
                    self.assertIsNone(script.poll())
                children = pathlib.Path(
                    f"/proc/{script.pid}/task/{script.pid}/children"
                ).read_text().split()  # fmt: skip
                self.assertEqual(len(children), 1)
                script.terminate()
                self.assertEqual(script.wait(timeout=30), 128 + signal.SIGTERM)
            self.assertFalse(pathlib.Path(f"/proc/{children[0]}").exists())

    def test_without_a_gpu_the_status_is_77(self):
        done, told, result, _ = self.run_on_stand_ins("programs skipped")
        self.assertEqual(done.returncode, 77)
        self.assertEqual(len(told), 1)
        self.assertIsNone(result)

    def test_the_comparison_needs_torch_and_a_gpu(self):
        with tempfile.TemporaryDirectory() as folder:
            hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
            done = run(sys.executable, BENCH / "torch_compare.py",
                       "--library", folder, env=hidden)  # fmt: skip
        self.assertEqual(done.returncode, 77)
        self.assertIn("skipped:", done.stdout)


def load_torch_compare():
    spec = importlib.util.spec_from_file_location(
        "torch_compare", BENCH / "torch_compare.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TimeLeft(unittest.TestCase):
    def test_the_longest_so_far_and_a_margin_must_fit(self):
        now = [0]
        left = load_torch_compare().TimeLeft(100, 45, lambda: now[0])
        now[0] = 55
        self.assertTrue(left.is_enough())
        now[0] = 56
        self.assertFalse(left.is_enough())  # nothing is known of them yet
        left.took(10)
        left.took(6)
        now[0] = 85
        self.assertTrue(left.is_enough())
        now[0] = 86
        self.assertFalse(left.is_enough())


class TorchModule(unittest.TestCase):
    """The module that is compared with, against plain arithmetic."""

    def setUp(self):
        try:
            import torch
        except ImportError:
            self.skipTest("there is no torch")
        self.torch = torch
        torch.manual_seed(1)
        self.module = load_torch_compare()

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
            weights[f"cross{i}_u_bias"] = torch.randn(top_width, dtype=torch.float64)
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
                full = w[f"cross{i}_u_weight"].mv(low) + w[f"cross{i}_u_bias"]
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
