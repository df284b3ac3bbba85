"""Which PyTorch models import, split and agree: a table.

    python -m tests.models.survey.survey [--only NAME,…] [--forms FORM,…]

Each model is exported in every form, imported, partitioned by both methods,
run whole and split at several batch sizes, and compared with the original
module in this process.
"""

import argparse
import importlib
import json
import random
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from models.zoo import safetensors_io
from tests.e2e import support
from tests.models.survey import (
    control,
    forms,
    interaction,
    language,
    operators,
    sequence,
)

BATCHES = (1, 2, 33)
METHODS = ("heuristic", "optimal")
ARCHITECTURES = [*interaction.CASES, *sequence.CASES, *operators.CASES]
LISTS = {"architectures": ARCHITECTURES, "language": language.CASES, "control": control.CASES}
CASES = [case for cases in LISTS.values() for case in cases]


@dataclass
class Outcome:
    """How far one form of one case came.

    step: "export" (PyTorch itself refuses), "import", "partition", "run",
    "agree" (what failed), "refused" (by name, as the case says), or "ok".
    """

    step: str
    why: str = ""


# Files that import and run get by --op-library.
op_libraries = []


def call(step, *arguments):
    if step in ("import", "run"):
        for library in op_libraries:
            arguments += ("--op-library", library)
    done = support.refract(*arguments, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Failed(step, f"exit {done.returncode}: {lines[-1] if lines else ''}")
    return done.stdout


class Failed(Exception):
    def __init__(self, step, why):
        super().__init__(why)
        self.step = step


def run(model, mode, files):
    pairs, outputs = [], {}
    for batch, request in files.requests.items():
        outputs[batch] = request.with_suffix(f".{mode}")
        pairs += ["--inputs", request, "--outputs", outputs[batch]]
    call("run", "run", model, "--mode", mode, *pairs)
    return {batch: safetensors_io.read(path) for batch, path in outputs.items()}


def compare(answers, results, what, tolerance):
    for batch, wanted in answers.items():
        got = results[batch]
        if got.keys() != wanted.keys():
            raise Failed("agree", f"{what}: outputs {sorted(got)} for {sorted(wanted)}")
        for name, tensor in wanted.items():
            other = got[name]
            if other.shape != tensor.shape or other.dtype != tensor.dtype:
                raise Failed(
                    "agree",
                    f"{what}, batch {batch}, {name}: {other.dtype} "
                    f"{list(other.shape)} for {tensor.dtype} {list(tensor.shape)}",
                )
            if not torch.allclose(other, tensor, equal_nan=True, **tolerance):
                error = (other.double() - tensor.double()).abs().max().item()
                raise Failed("agree", f"{what}, batch {batch}, {name}: off by {error:.3g}")


def same_bits(whole, split, what):
    for batch, tensors in whole.items():
        for name, tensor in tensors.items():
            a = tensor.contiguous().reshape(-1).view(torch.uint8)
            b = split[batch][name].contiguous().reshape(-1).view(torch.uint8)
            if not torch.equal(a, b):
                raise Failed("agree", f"{what}, batch {batch}: {name} differs from whole")


def check(case, files, methods=METHODS):
    """Imports, partitions and runs what forms.export() wrote."""
    repository = files.model.parent / "repo"
    model = repository / case.name
    try:
        call(
            "import", "import", files.model, "--repo", repository, "--name",
            case.name, "--no-golden", "--sample", files.sample,
        )
        whole = run(model, "whole", files)
        compare(files.answers, whole, "whole", case.tolerance)
        for method in methods:
            call(
                "partition", "partition", model, "--method", method, "--write"
            )
            split = run(model, "split", files)
            same_bits(whole, split, f"split by {method}")
    except Failed as failure:
        return Outcome(failure.step, str(failure))
    return Outcome("ok")


def survey(case, form, files, methods):
    """What check() finds; a refusal that the case foretells is one."""
    outcome = check(case, files, methods)
    text = case.refused.get(form)
    if text is not None and outcome.step == "import":
        if "exit 2" in outcome.why and text in outcome.why:
            return Outcome("refused", outcome.why)
    return outcome


def summary(lists, outcomes):
    """Counts of every list and form, as the tables of docs/measurements have them."""
    rows = []
    for name, cases in lists.items():
        names = {case.name for case in cases}
        for form in dict.fromkeys(form for _, form, _ in outcomes):
            steps = [step for case, of, step in outcomes if of == form and case in names]
            if steps:
                rows.append({
                    "name": name, "form": form, "tried": len(steps),
                    "written": len(steps) - steps.count("export"),
                    "agree": steps.count("ok"),
                })  # fmt: skip
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names, comma-separated")
    parser.add_argument("--forms", default=",".join(forms.FORMS))
    parser.add_argument("--cases", help="module with CASES to survey instead")
    parser.add_argument("--op-library", action="append", default=[])
    parser.add_argument("--keep", help="folder to leave the files in")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--methods", default=",".join(METHODS), help="of partition")
    parser.add_argument("--jobs", type=int, default=1, help="models checked at once")
    parser.add_argument("--json", type=Path, help="file for the counts by list and form")
    args = parser.parse_args()
    op_libraries.extend(args.op_library)
    lists = LISTS
    if args.cases:
        lists = {args.cases.rpartition(".")[2]: importlib.import_module(args.cases).CASES}
    cases = [case for cases in lists.values() for case in cases]
    only = set(filter(None, args.only.split(",")))
    if unknown := only - {case.name for case in cases}:
        parser.error(f"--only: there is no case {min(unknown)}")
    work = Path(args.keep or tempfile.mkdtemp(prefix="refract-survey-"))
    print(f"seed {args.seed} (repeat with --seed)")
    torch.set_num_threads(1)
    counts, outcomes, waiting = {}, [], []

    def report(down_to):
        while len(waiting) > down_to:
            case, form, outcome = waiting.pop(0)
            if not isinstance(outcome, Outcome):
                outcome = outcome.result()
            counts[outcome.step] = counts.get(outcome.step, 0) + 1
            outcomes.append((case.name, form, outcome.step))
            print(f"{case.name:20} {form:10} {outcome.step:9} {outcome.why[:400]}", flush=True)

    pool = ThreadPoolExecutor(args.jobs)
    try:
        for case, form in [
            (case, form)
            for case in cases
            for form in args.forms.split(",")
            if case.has(form) and (not only or case.name in only)
        ]:
            folder = work / case.name / form
            shutil.rmtree(folder, ignore_errors=True)
            # Exporting is not thread-safe; the commands are other processes.
            try:
                batches = [b for b in BATCHES if b >= case.smallest]
                files = forms.export(case, form, folder, batches, args.seed)
                outcome = pool.submit(survey, case, form, files, args.methods.split(","))
            except forms.CannotExport as error:
                outcome = Outcome("export", str(error).splitlines()[0])
            waiting.append((case, form, outcome))
            report(args.jobs)
        report(0)
    finally:
        pool.shutdown(cancel_futures=True)
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)
    print(counts)
    if args.json:
        args.json.write_text(
            json.dumps({
                "seed": args.seed, "lists": summary(lists, outcomes),
                "others": [row for row in outcomes if row[2] != "ok"],
            }, indent=1) + "\n"
        )  # fmt: skip
    tried = sum(counts.values()) - counts.get("export", 0)
    right = counts.get("ok", 0)
    print(f"import, split and agree: {right} of {tried} that PyTorch exports")
    return 0 if right + counts.get("refused", 0) == tried else 1


if __name__ == "__main__":
    sys.exit(main())
