#!/usr/bin/env python3
"""Compares the CUDA backend with PyTorch on the same GPU, in one process.

Scores against PyTorch in float64, time against PyTorch eager and against
torch.compile with CUDA graphs, with the same weights and inputs, which lie on the
GPU for all. torch.compile's result is recorded as one CUDA graph on the same
inputs and only replayed: mode="reduce-overhead" would also count PyTorch's
guards and a copy of the inputs with every call. Exit status 0: scores agree; 1: they
do not, or something failed; 2: bad usage; 77: there is no torch or no GPU, with the
reason as the last line.

--parts names the comparisons to make, out of the list of --list. A comparison begins
with a line "-- NAME"; its results are lines "= {JSON}". An error that took the GPU
along ends the process: run_parts.py starts it again behind that comparison.

--dry-run runs all of it once on the CPU, at sizes that mean nothing, with the
library that computes on a GPU of this process (scripts/gpu_check.sh --dry-run).
"""

import argparse
import ctypes
import importlib
import json
import os
import statistics
import sys
import time
import traceback

PRECISIONS = {"fp32": 0, "tf32": 1, "fp16": 2, "bf16": 3}  # bench::Precision
# Largest error of a score in (0, 1) against float64.
ALLOWED = {"fp32": 1e-4, "fp16": 2e-2}
BARS = {"eager": 0.5, "compiled": 1.0}


def load(path):
    """The C functions of python_api.cc."""
    library = ctypes.CDLL(path)
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    floats = ctypes.POINTER(ctypes.c_float)
    for name, result, arguments in [
        ("rc_error", ctypes.c_char_p, []),
        ("rc_create", pointer, [integer] * 3),
        ("rc_destroy", None, [pointer]),
        ("rc_num_weights", integer, [pointer]),
        ("rc_weight_name", ctypes.c_char_p, [pointer, integer]),
        ("rc_weight_rows", ctypes.c_int64, [pointer, integer]),
        ("rc_weight_cols", ctypes.c_int64, [pointer, integer]),
        ("rc_weight_data", floats, [pointer, integer]),
        ("rc_run", integer, [pointer, integer, floats, floats, floats]),
        ("rc_time", ctypes.c_double, [pointer, integer, integer]),
    ]:
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def make_module(torch, weights, cross_layers):
    """The same model in PyTorch, as its users write it."""

    class Dense(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, weight in weights.items():
                self.register_buffer(name, weight.clone())
            row, col = torch.tril_indices(27, 27, offset=-1)
            self.register_buffer("row", row)
            self.register_buffer("col", col)

        def linear(self, x, name):
            return torch.nn.functional.linear(
                x, getattr(self, name + "_weight"), getattr(self, name + "_bias")
            )

        def forward(self, dense, embeddings):
            x = dense
            for i in range(3):
                x = torch.relu(self.linear(x, f"bottom{i}"))
            if cross_layers == 0:
                features = torch.cat([x, embeddings], dim=1).view(-1, 27, 128)
                dots = torch.bmm(features, features.transpose(1, 2))
                x = torch.cat([x, dots[:, self.row, self.col]], dim=1)
            else:
                x0 = x = torch.cat([x, embeddings], dim=1)
                for i in range(cross_layers):
                    low = x @ getattr(self, f"cross{i}_v_weight").t()
                    full = low @ getattr(self, f"cross{i}_u_weight").t()
                    x = x0 * (full + getattr(self, f"cross{i}_u_bias")) + x
            for i in range(4):
                x = torch.relu(self.linear(x, f"top{i}"))
            return torch.sigmoid(self.linear(x, "top4").float())

    return Dense()


def quartiles(values):
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"q25": low, "median": middle, "q75": high}


def report(facts):
    """A line for run_parts.py."""
    print(f"= {json.dumps(facts)}", flush=True)


class TimeLeft:
    """Until `end`, for comparisons that all take about as long: `first_s` until one
    has shown how long, and some more than the longest so far from there on."""

    MARGIN = 1.5

    def __init__(self, end, first_s, clock=time.monotonic):
        self.end, self.needed_s, self.clock = end, first_s, clock
        self.longest_s = 0

    def is_enough(self):
        return self.clock() + self.needed_s <= self.end

    def took(self, seconds):
        self.longest_s = max(self.longest_s, seconds)
        self.needed_s = self.MARGIN * self.longest_s


class Comparison:
    # The first one: nearly all of it is compiling, from a disk that may be cold.
    FIRST_S = 45

    def __init__(self, torch, library, options):
        self.torch = torch
        self.library = library
        self.dry_run = options.dry_run
        self.device = "cpu" if options.dry_run else "cuda"
        self.time_left = TimeLeft(
            time.monotonic() + options.limit_s, 0 if options.dry_run else self.FIRST_S
        )
        self.repetitions = 2 if options.dry_run else 7 if options.quick else 21
        self.failures = []
        self.models = {}

    def check(self, ok, message):
        if not ok:
            self.failures.append(message)
            print(f"FAILED: {message}", flush=True)

    def guarded(self, what, function, *arguments):
        """One failure must not cost the figures after it."""
        try:
            function(*arguments)
        except Exception as error:  # pylint: disable=broad-except
            traceback.print_exc()
            self.check(False, f"{what}: {error}")
            # After most errors of a GPU nothing of this process works on it.
            try:
                self.wait()
            except Exception:  # pylint: disable=broad-except
                sys.exit(1)

    def wait(self):
        if not self.dry_run:
            self.torch.cuda.synchronize()

    def compile(self, module, dense, embeddings):
        """What runs the compiled module on these inputs, as a function without
        arguments, and its result."""
        torch = self.torch
        torch._dynamo.reset()
        if self.dry_run:
            compiled = torch.compile(module, backend="eager", dynamic=False)
            return (lambda: compiled(dense, embeddings)), compiled(dense, embeddings)
        compiled = torch.compile(module, fullgraph=True, dynamic=False)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # compiles, loads libraries
                compiled(dense, embeddings)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(dense, embeddings)
        graph.replay()
        self.wait()
        return graph.replay, result

    def model(self, v2, precision, max_batch):
        handle = self.library.rc_create(v2, PRECISIONS[precision], max_batch)
        if not handle:
            raise RuntimeError(self.library.rc_error().decode())
        weights = {}
        for i in range(self.library.rc_num_weights(handle)):
            name = self.library.rc_weight_name(handle, i).decode()
            rows = self.library.rc_weight_rows(handle, i)
            cols = self.library.rc_weight_cols(handle, i)
            data = self.library.rc_weight_data(handle, i)
            values = (ctypes.c_float * (rows * cols)).from_address(
                ctypes.addressof(data.contents)
            )
            weight = self.torch.frombuffer(values, dtype=self.torch.float32)
            weights[name] = weight.clone().view(
                (cols,) if name.endswith("_bias") else (rows, cols)
            )
        return handle, make_module(self.torch, weights, 3 if v2 else 0)

    def inputs(self, batch, dtype):
        """Random numbers that `dtype` represents exactly, as float32."""
        torch = self.torch
        generator = torch.Generator().manual_seed(batch)
        return [
            (torch.rand(batch, width, generator=generator) * 2 - 1)
            .to(dtype)
            .float()
            .contiguous()
            for width in (13, 26 * 128)
        ]

    def scores(self, handle, dense, embeddings):
        scores = self.torch.empty(dense.shape[0])
        pointer = ctypes.POINTER(ctypes.c_float)
        arguments = [
            ctypes.cast(tensor.data_ptr(), pointer)
            for tensor in (dense, embeddings, scores)
        ]
        if self.library.rc_run(handle, dense.shape[0], *arguments):
            raise RuntimeError(self.library.rc_error().decode())
        return scores

    def load(self, v2, precision, max_batch):
        """Checks a model's scores; it stays for time()."""
        torch = self.torch
        name = "dlrm_dcnv2" if v2 else "dlrm_v1"
        dtype = torch.float16 if precision == "fp16" else torch.float32
        handle, module = self.model(v2, precision, max_batch)
        exact = module.double().to(self.device)
        for batch in sorted({1, min(33, max_batch), max_batch}):
            dense, embeddings = self.inputs(batch, dtype)
            with torch.no_grad():
                want = exact(
                    dense.double().to(self.device), embeddings.double().to(self.device)
                )
            got = self.scores(handle, dense, embeddings)
            error = (want.cpu().view(-1).float() - got).abs().max().item()
            report({f"{name} {precision}, batch {batch}, score error": error})
            self.check(
                error <= ALLOWED[precision],
                f"{name} {precision}, batch {batch}: error {error}",
            )
        self.models[v2, precision] = (
            handle,
            module.to(dtype).to(self.device).eval(),
            dtype,
        )

    def compare(self, v2, precision, batch, max_batch):
        if (v2, precision) not in self.models:
            # None where this fails, which is reported once.
            self.models[v2, precision] = None
            self.load(v2, precision, max_batch)
        if self.models[v2, precision] is None:
            return
        name = "dlrm_dcnv2" if v2 else "dlrm_v1"
        self.time(name, precision, *self.models[v2, precision][:2], batch,
                  self.models[v2, precision][2])  # fmt: skip

    def time(self, name, precision, handle, module, batch, dtype):
        torch = self.torch
        what = f"{name} {precision}, batch {batch}"
        begin = time.monotonic()
        if not self.time_left.is_enough():
            report({"left_out": what})
            print(f"left out for time: {what}", flush=True)
            return
        dense, embeddings = (
            tensor.to(dtype).to(self.device) for tensor in self.inputs(batch, dtype)
        )
        runs = 1 if self.dry_run else 50 if batch <= 1024 else 10

        def torch_time(function):
            self.wait()
            begin = time.perf_counter()
            for _ in range(runs):
                function()
            self.wait()
            return time.perf_counter() - begin

        def eager():
            return module(dense, embeddings)

        def our_time():
            self.wait()
            seconds = self.library.rc_time(handle, batch, runs)
            if seconds < 0:
                raise RuntimeError(self.library.rc_error().decode())
            return seconds

        with torch.no_grad():
            variants = [our_time, lambda: torch_time(eager)]
            names = ["eager"]
            try:
                compiled, result = self.compile(module, dense, embeddings)
                difference = (result - eager()).abs().max().item()
                if difference > 2 * ALLOWED[precision]:
                    raise RuntimeError(f"its scores are {difference} off")
                variants.append(lambda: torch_time(compiled))
                names.append("compiled")
            except Exception as error:  # pylint: disable=broad-except
                # The figures against eager stay.
                self.check(False, f"{what}: torch.compile: {error}")
            for variant in variants:  # clocks, caches, pools of memory
                variant()
                variant()
            times = [[] for _ in variants]
            for repetition in range(self.repetitions):
                for i in range(len(variants)):
                    variant = (i + repetition) % len(variants)
                    times[variant].append(variants[variant]())
        for index, other in enumerate(names, start=1):
            ratios = [a / b for a, b in zip(times[0], times[index])]
            row = {"name": f"G5 ours / torch {other}, {what}"}
            row.update(quartiles(ratios))
            row["at_most"] = BARS[other]
            row["reached"] = row["q75"] <= BARS[other]
            row["ours_us"] = statistics.median(times[0]) / runs * 1e6
            row["torch_us"] = statistics.median(times[index]) / runs * 1e6
            report(row)
            print(
                f"{row['name']:<52} {row['median']:8.3f} [{row['q25']:.3f}, "
                f"{row['q75']:.3f}]  <= {BARS[other]:.2f}  "
                f"{'reached' if row['reached'] else 'MISSED'}",
                flush=True,
            )
        self.time_left.took(time.monotonic() - begin)


def warm_up(torch):
    """Has the disk and the driver bring what a first torch.compile needs."""
    importlib.import_module("torch._inductor.compile_fx")
    if torch.cuda.is_available():
        with torch.no_grad():
            x = torch.ones(64, 64, device="cuda", dtype=torch.float16)
            torch.compile(lambda x: torch.relu(x @ x).float().sigmoid())(x)
            torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", help="librefract_cuda_python.so")
    parser.add_argument(
        "--limit-s", type=float, default=300, help="leave out what would end later"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dry-run", action="store_true", help="see above")
    parser.add_argument("--parts", help="these alone: NAME,…")
    parser.add_argument("--list", action="store_true", help="print their names")
    parser.add_argument("--warm-up", action="store_true",
                        help="only have the disk bring what is needed")  # fmt: skip
    options = parser.parse_args()
    if not (options.library or options.warm_up):
        parser.error("--library is missing")
    # No compile processes, one per core, during the measurement; when a process
    # ends, PyTorch waits up to five minutes for theirs (pytorch/pytorch#162199).
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    batches = [1, 64, 256, 1024, 8192]
    if options.dry_run:
        batches = [1, 2]
    elif options.quick:
        batches = [1, 64]
    # Both models at each batch, the ends of the range first: with too little time,
    # the middle is left out.
    order = [batches[0], batches[-1], *batches[1:-1]]
    plan = [(v2, "fp16", batch) for batch in order for v2 in (0, 1)]
    plan += [(v2, "fp32", batches[1]) for v2 in (0, 1)]
    parts = {f"v{v2 + 1}_{precision}_{batch}": (v2, precision, batch)
             for v2, precision, batch in plan}  # fmt: skip
    try:
        import torch
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    if options.warm_up:
        warm_up(torch)
        return 0
    if not options.dry_run and not torch.cuda.is_available():
        print(f"skipped: torch {torch.__version__} sees no GPU")
        return 77
    if options.list:
        print("\n".join(parts))
        return 0
    torch.backends.cuda.matmul.allow_tf32 = False
    comparison = Comparison(torch, load(options.library), options)
    device = "a dry run" if options.dry_run else torch.cuda.get_device_name(0)
    report({"torch": torch.__version__, "device": device, "dry_run": options.dry_run})
    for name in options.parts.split(",") if options.parts else parts:
        v2, precision, batch = parts[name]
        print(f"-- {name}", flush=True)
        most = max(batches) if precision == "fp16" else batches[1]
        comparison.guarded(f"v{v2 + 1} {precision}, batch {batch}",
                           comparison.compare, v2, precision, batch, most)  # fmt: skip
    return 1 if comparison.failures else 0


if __name__ == "__main__":
    sys.exit(main())
