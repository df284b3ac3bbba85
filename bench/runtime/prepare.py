"""Makes the files that `bench_runtime models` reads: the zoo's models in every form.

    python -m bench.runtime.prepare --refract build/release/bin/refract \
        --out DIR [--aoti] [--zero-share F] [--cases MODULE]

Per model DIR/NAME holds NAME.pt2, NAME.pt (frozen TorchScript, tables inside),
inputs of each batch and, with --aoti, NAME.aoti.pt2, compiled by AOTInductor
with max-autotune off and weights frozen (needs g++; minutes). DIR/repo is the
repository that refract reads.

--cases takes other models, from MODULE.CASES, which are as
tests/models/survey/case.py says. bench.runtime.libraries has published libraries'
at the sizes of Criteo's fields.
"""

import argparse
import copy
import importlib
import os
import pathlib
import shutil
import subprocess
import sys

SEED = 1
MODELS = ["dlrm", "dlrm_dcnv2", "wide_deep", "deepfm", "din", "two_tower"]


def python(*arguments):
    subprocess.run([sys.executable, *map(str, arguments)], check=True)


def without_avx512():
    """Inductor chooses vectors by ATEN_CPU_CAPABILITY, but compiles for all that
    the processor has."""
    from torch._inductor import cpp_builder

    original = cpp_builder._get_optimization_cflags

    def flags(*arguments, **options):
        found, rest = original(*arguments, **options)
        return ["march=x86-64-v3" if f == "march=native" else f for f in found], rest

    cpp_builder._get_optimization_cflags = flags


def compile_package(source, target):
    import torch
    from torch._inductor import config

    torch.set_num_threads(1)
    config.freezing = True
    if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2":
        without_avx512()
    program = torch.export.load(source)
    # With gradients enabled Inductor leaves weights as they are, in spite of
    # `freezing`.
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(target.absolute())
        )


def flat(module, example):
    """`module` of tensors to a tuple of tensors, as Refract has it, and its
    arguments: dicts and lists go around what is timed."""
    import torch
    from torch.utils import _pytree as pytree

    leaves, form = pytree.tree_flatten(example)
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, *tensors):
            given = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor
            results = pytree.tree_leaves(self.module(*pytree.tree_unflatten(given, form)))
            return tuple(x for x in results if isinstance(x, torch.Tensor))

    return Flat().eval(), tuple(leaves[place] for place in places)


def export_case(case, folder, batches):
    """Writes NAME.pt2, NAME.pt and the inputs of a case of the survey."""
    import dataclasses

    import torch
    from torch.fx.experimental import _config as shape_config

    from tests.models.survey import forms

    shutil.rmtree(folder, ignore_errors=True)
    # Once: some libraries keep a first model's tables for the next.
    torch.manual_seed(SEED)
    built = forms.quietly(case.build)
    case = dataclasses.replace(case, build=lambda: copy.deepcopy(built))
    # Without the assumption that no batch is 1.
    with shape_config.patch(backed_size_oblivious=True):
        files = forms.export(case, "pt2", folder, batches, SEED)
    torch.manual_seed(SEED)
    module = forms.quietly(case.build).eval()
    forms.scramble(module)
    example = case.inputs(2, torch.Generator().manual_seed(SEED))
    module, tensors = flat(module, copy.deepcopy(example))
    traced = forms.quietly(
        torch.jit.trace, module, tensors, check_trace=False, strict=False
    )
    frozen = forms.quietly(torch.jit.freeze, traced)
    torch.jit.save(frozen, str(folder / f"{case.name}.pt"))
    for batch, request in files.requests.items():
        request.rename(folder / f"batch{batch}.safetensors")
    # Last: a folder that has it is complete.
    files.model.rename(folder / f"{case.name}.pt2")


def prepare_cases(options, batches):
    for case in importlib.import_module(options.cases).CASES:
        folder = options.out / case.name
        source = folder / f"{case.name}.pt2"
        if not source.exists():
            export_case(case, folder, batches)
            add_to_repository(options, case.name, source)
        if options.aoti and not (folder / f"{case.name}.aoti.pt2").exists():
            compile_package(source, folder / f"{case.name}.aoti.pt2")
        print(case.name, flush=True)


def add_to_repository(options, name, source):
    # With it the importer sees which batches an export's guards need not fear.
    sample = source.parent / "sample.safetensors"
    subprocess.run(
        [
            options.refract, "import", source, "--no-golden", "--sample", sample,
            "--repo", options.out / "repo", "--name", name,
        ],
        check=True,
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--refract", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--tables-gib", default="0.25")
    parser.add_argument("--aoti", action="store_true")
    parser.add_argument("--zero-share", metavar="F", help="part of every ReLU's results that is zero, by shifted biases; about 0.5 without")
    parser.add_argument("--cases", metavar="MODULE", help="module whose CASES are prepared instead of the zoo")
    options = parser.parse_args()
    if options.cases:
        batches = [int(batch) for batch in options.batches.split(",")]
        return prepare_cases(options, batches)
    for name in options.models.split(","):
        folder = options.out / name
        source = folder / f"{name}.pt2"
        if not source.exists():
            python(
                "-m", "models.zoo.export", "--model", name, "--out", folder,
                "--tables-gib", options.tables_gib, "--tables-inside",
                *(("--zero-share", options.zero_share) if options.zero_share else ()),
            )
            add_to_repository(options, name, source)
        for batch in options.batches.split(","):
            inputs = folder / f"batch{batch}.safetensors"
            if not inputs.exists():
                python(
                    "-m", "models.zoo.inputs", folder / f"{name}.json",
                    "--batch", batch, "--out", inputs,
                )
        package = folder / f"{name}.aoti.pt2"
        if options.aoti and not package.exists():
            compile_package(source, package)


if __name__ == "__main__":
    main()
