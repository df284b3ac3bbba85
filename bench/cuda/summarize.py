#!/usr/bin/env python3
"""Puts the results of scripts/gpu_check.sh together: one JSON file, one table.

run_parts.py calls it after every process; the script itself, where the build
fails."""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys


def read(path):
    """The object in `path`, or None where a step wrote nothing of use."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@functools.cache
def revision():
    """The source's revision: REFRACT_REVISION for a copy without history."""
    if os.environ.get("REFRACT_REVISION"):
        return os.environ["REFRACT_REVISION"]
    described = output_of("git", "describe", "--always", "--dirty", "--abbrev=12")
    return described or "unknown"


def output_of(*command):
    """Output of a program on one line; "" where there is none."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return " ".join(done.stdout.split()) if done.returncode == 0 else ""


@functools.cache
def machine():
    """Driver, clocks and compiler, on which figures depend."""
    wanted = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    gpu = output_of("nvidia-smi", f"--query-gpu={wanted}", "--format=csv,noheader")
    return {"gpu": gpu, "nvcc": output_of("nvcc", "--version")}


def number(value, digits=3):
    """A value that was no finite number is null in JSON."""
    return "–" if value is None else f"{value:.{digits}f}"


def table(rows):
    """Markdown, one line a figure."""
    lines = ["| what | median [q25, q75] | bar | |", "| --- | --- | --- | --- |"]
    for row in rows:
        median, q25, q75 = (number(row[key]) for key in ("median", "q25", "q75"))
        figure = f"{median} [{q25}, {q75}]"
        if "reached" not in row:
            lines.append(f"| {row['name']} | {figure} | none | |")
            continue
        side = "at_most" if "at_most" in row else "at_least"
        sign = "≤" if side == "at_most" else "≥"
        lines.append(
            f"| {row['name']} | {figure} | {sign} {row[side]:g} | "
            f"{'reached' if row['reached'] else '**missed**'} |"
        )
    return "\n".join(lines)


def write(folder, seconds, failed, quiet=False):
    """gpu_check.json and gpu_check.md from the files in `folder`. `failed`: names of
    programs and parts. False if there are no files."""
    check, bench, torch = (
        read(folder / f"{name}.json") for name in ("check", "bench", "torch")
    )
    if check is None and bench is None and torch is None and not failed:
        print(f"{folder}: no results at all", file=sys.stderr)
        return False
    device = next(
        (part["device"] for part in (check, bench, torch) if part and part.get("device")),
        "no device",
    )
    rows = [row for part in (bench, torch) if part for row in part.get("rows", [])]
    left_out = [
        what for part in (check, bench, torch) if part for what in part.get("left_out", [])
    ]
    result = {
        "revision": revision(),
        "device": device,
        "machine": machine(),
        "complete": bool(check and bench and torch) and not left_out and not failed,
        "failed": failed,
        "seconds": seconds,
        "check": check,
        "bench": bench,
        "torch": torch,
    }
    (folder / "gpu_check.json").write_text(
        json.dumps(result, indent=2) + "\n", encoding="utf-8"
    )
    parts = (check or {}).get("parts", {})
    passed = [name for name, part in parts.items() if part.get("outcome") == "ok"]
    text = [
        f"# {device}, revision {result['revision']}",
        "",
        f"{seconds:.0f} s in all. "
        + (
            f"{len(passed)} of {len(parts)} parts of the check passed."
            if passed
            else "No part of the check passed: no figure below means anything."
        ),
        "",
        table(rows),
        "",
    ]
    if any(part and part.get("dry_run") for part in (bench, torch)):
        text.append("- A dry run: the figures mean nothing.")
    for part in parts.values():
        for name, value in part.items():
            if name.endswith("score error"):
                text.append(f"- {name}: {number(value, 6)}")
    for name, part in parts.items():
        outcome = part.get("outcome", "ok")
        if outcome == "ok":
            continue
        # Errors a little above a tolerance may be the tolerance's fault.
        small = outcome.startswith("slightly")
        text.append(
            f"- **Failed**: check of {name}: {outcome}."
            + ("" if small else " Figures of what it checks mean nothing.")
        )
        text += [f"    {line}" for line in part.get("output", [])[:3]]
    for what in failed:
        if what.startswith("check of "):
            continue  # above
        text.append(f"- **Failed**: {what} (its log says why).")
    for what, part in (("check", check), ("bench", bench), ("torch", torch)):
        if part is None:
            text.append(f"- Not done: {what} (its log says why).")
    for what in left_out:
        text.append(f"- Left out for time: {what}.")
    for part in ((torch or {}).get("parts") or {}).values():
        text += [f"    {line}" for line in part.get("output", [])[:3]]
    (folder / "gpu_check.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    if not quiet:
        print("\n".join(text))
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument(
        "--failed", action="append", default=[], help="a part that failed"
    )
    options = parser.parse_args()
    return 0 if write(options.folder, options.seconds, options.failed) else 1


if __name__ == "__main__":
    sys.exit(main())
