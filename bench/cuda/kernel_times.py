#!/usr/bin/env python3
"""Times each kernel of the dense models on a GPU, ours and torch.compile's.

    python3 bench/cuda/kernel_times.py build/gpu_check/bench/librefract_cuda_python.so

For each model and batch: the median duration of every kernel of one CUDA graph
launch and of the gap before it, in microseconds, in the order of execution. The
models and inputs are those of torch_compare.py, in fp16. Needs PyTorch with its
profiler (CUPTI), which slows gaps down: totals are a little above the times that
torch_compare.py gives.
"""

import argparse
import os
import statistics

import torch
import torch_compare
from torch.profiler import ProfilerActivity, profile

RUNS = 9
MAX_BATCH = 8192


def kernels_of(run):
    """The kernels that `run` starts, in the order of their begin."""
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    kernels = [
        event
        for event in profiled.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not event.name.startswith("Mem")  # copies, clearing
    ]
    return sorted(kernels, key=lambda kernel: kernel.time_range.start)


def show(what, run):
    """`run` executes the model RUNS times."""
    kernels = kernels_of(run)
    print(f"\n## {what}")
    if not kernels or len(kernels) % RUNS:
        print(f"{len(kernels)} kernels in {RUNS} runs: not the same in each run")
        return
    length = len(kernels) // RUNS
    runs = [kernels[i * length : (i + 1) * length] for i in range(RUNS)]
    total = 0
    for place in range(length):
        took = statistics.median(run[place].time_range.elapsed_us() for run in runs)
        # The gap before the first kernel begins at the end of the previous run.
        gap = statistics.median(
            runs[i][place].time_range.start
            - (runs[i][place - 1] if place else runs[i - 1][-1]).time_range.end
            for i in range(1, RUNS)
        )
        total += took + gap
        print(f"{took:9.2f} {gap:7.2f}  {runs[0][place].name[:100]}")
    print(f"{total:9.2f} in all")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", help="librefract_cuda_python.so")
    parser.add_argument("--batches", default="1,64,256,1024,8192")
    options = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    library = torch_compare.load(options.library)
    settings = argparse.Namespace(dry_run=False, limit_s=600, quick=True)
    comparison = torch_compare.Comparison(torch, library, settings)
    for v2, name in enumerate(("dlrm_v1", "dlrm_dcnv2")):
        handle, module = comparison.model(v2, "fp16", MAX_BATCH)
        module = module.half().cuda().eval()
        for batch in map(int, options.batches.split(",")):
            dense, embeddings = (
                tensor.half().cuda() for tensor in comparison.inputs(batch, torch.float16)
            )
            # rc_time() computes once before it measures.
            show(
                f"ours, {name}, batch {batch}",
                lambda b=batch, h=handle: library.rc_time(h, b, RUNS - 1),
            )
            with torch.no_grad():
                replay, _ = comparison.compile(module, dense, embeddings)
                show(
                    f"torch.compile, {name}, batch {batch}",
                    lambda run=replay: [run() for _ in range(RUNS)],
                )


if __name__ == "__main__":
    main()
