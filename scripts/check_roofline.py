#!/usr/bin/env python3
"""Compares costs from a hardware description with measured costs.

    python3 scripts/check_roofline.py --refract build/release/bin/refract \\
        --hardware FILE.textproto DIR/NAME…

Profiles every model on this machine, prices it by the description, and prints
estimated ÷ measured: of all operators together, and the quartiles over the
operators that take at least 1 % of the time. The description should be of this
machine (`refract profile --hardware`), which should be idle otherwise.
Writes a split plan beside each model.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile


def run(*command):
    subprocess.run(
        [str(part) for part in command], check=True, stdout=subprocess.DEVNULL
    )


def estimates(refract, model, hardware, batch, folder):
    """Seconds of every operator by the description, by name."""
    report = folder / "report.json"
    run(
        refract, "partition", model, "--method", "optimal", "--cn", hardware,
        "--cn-profile", "none", "--batch", batch, "--json", report,
    )
    nodes = json.loads(report.read_text())["partition"]["nodes"]
    return {node["name"]: node["cn_s"] for node in nodes}


def check(refract, model, hardware, folder):
    """Rows of one model, by batch; printed too."""
    rows = []
    measured = folder / "profile.json"
    run(
        refract, "profile", model, "--output", folder / "profile.textproto",
        "--json", measured,
    )
    profile = json.loads(measured.read_text())["profile"]
    for place, batch in enumerate(profile["batches"]):
        by_name = estimates(refract, model, hardware, batch, folder)
        # A step of the profile may be several operators that were merged; the
        # description prices each of them. Both sides are compared step by step.
        pairs = [
            (
                sum(by_name[node] for node in step["nodes"]),
                step["samples"][place]["median_s"],
            )
            for step in profile["operators"]
        ]
        total = sum(seconds for _, seconds in pairs)
        ratios = [
            estimate / seconds
            for estimate, seconds in pairs
            if seconds >= 0.01 * total
        ]
        # quantiles() needs two values.
        low, middle, high = (
            statistics.quantiles(ratios, n=4, method="inclusive")
            if len(ratios) > 1
            else ratios * 3
        )
        name = pathlib.Path(model).name
        whole = sum(estimate for estimate, _ in pairs) / total
        print(
            f"{name:12} batch {batch:4}: all {whole:5.2f}; "
            f"operators {low:5.2f} {middle:5.2f} {high:5.2f} ({len(ratios)})",
            flush=True,
        )
        rows.append({
            "model": name, "batch": batch, "estimated_over_measured": whole,
            "operators": {"q25": low, "median": middle, "q75": high},
        })  # fmt: skip
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--refract", default="build/release/bin/refract")
    parser.add_argument("--hardware", required=True)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("models", nargs="+", metavar="DIR/NAME")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            rows += check(
                arguments.refract, model, arguments.hardware,
                pathlib.Path(folder),
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({"models": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
