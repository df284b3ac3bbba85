"""Makes what `bench_runtime models` reads: the zoo's models in every form.

    python -m bench.runtime.prepare --refract build/release/bin/refract \
        --out DIR [--aoti]

Per model DIR/NAME holds NAME.pt2, NAME.pt (frozen TorchScript, tables inside),
inputs of each batch and, with --aoti, NAME.aoti.pt2, compiled by AOTInductor
with max-autotune off and weights frozen (needs g++; minutes). DIR/repo is the
repository that refract reads.
"""

import argparse
import pathlib
import subprocess
import sys

MODELS = ["dlrm", "dlrm_dcnv2", "wide_deep", "deepfm", "din", "two_tower"]


def python(*arguments):
    subprocess.run([sys.executable, *map(str, arguments)], check=True)


def compile_package(source, target):
    import torch
    from torch._inductor import config

    torch.set_num_threads(1)
    config.freezing = True
    program = torch.export.load(source)
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(target.absolute())
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--refract", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--tables-gib", default="0.25")
    parser.add_argument("--aoti", action="store_true")
    options = parser.parse_args()
    for name in options.models.split(","):
        folder = options.out / name
        source = folder / f"{name}.pt2"
        if not source.exists():
            python(
                "-m", "models.zoo.export", "--model", name, "--out", folder,
                "--tables-gib", options.tables_gib, "--tables-inside",
            )
            subprocess.run(
                [
                    options.refract, "import", source,
                    "--repo", options.out / "repo", "--name", name,
                ],
                check=True,
            )
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
