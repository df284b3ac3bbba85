#!/usr/bin/env python3
"""Measures the figures of README.md and docs/measurements, and compares the pages.

    python3 bench/report.py                   # hours; nothing else may run
    python3 bench/report.py --only 'tls|http' # subjects whose name matches
    python3 bench/report.py --short           # few rounds: tries the commands

Writes DIR/report.json (machine, instruction set, revision, load; per subject its
command and complete JSON) and DIR/report.html (per subject a table and a plot of
medians with quartiles). A subject that cannot run here is named with the reason; one
that fails costs only its own figures.

Then it compares the pages with the reports that are kept in bench/results, as
bench/figures.py --check does. Figures of a new run are not copied into
bench/results: whoever publishes them does, as MACHINE/SUBJECT.json. Exit status 1
when a subject failed, a page quotes a figure that the kept reports do not have, or no
subject makes a table of a page. The subjects are in bench/subjects.py.
"""

import argparse
import html
import importlib.util
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.subjects import PREPARATIONS, PYTHON, SUBJECTS  # noqa: E402

# Fields that tell entries of one list from another, in the order of a name.
IDENTITY = (
    "name", "model", "format", "op", "mode", "level", "against", "bytes", "batch",
    "look_ups", "load", "policy", "case", "form", "shape", "objective", "nodes",
    "requests_per_s",
)
# Exit status of what cannot run on this machine.
SKIPPED = 77
# Figures that have no quartiles.
SINGLE = (
    "geometric_mean", "least", "p99_beside_over_alone", "p50_ratio", "p99_ratio", "agree",
    "predicted_over_measured", "estimated_over_measured", "rank_correlation", "mean",
    "cpu_drop_percent", "gpu_drop_percent", "never_placed", "proven", "seconds",
)


def instruction_set(flags):
    """The widest that Refract has code for."""
    if "avx512f" in flags:
        return "AVX-512"
    return "AVX2" if "avx2" in flags else "portable"


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*: (.*)$", info, re.M)
    numbers = [
        re.search(rf"^{field}\s*: (\d+)$", info, re.M)
        for field in ("cpu family", "model", "stepping")
    ]
    flags = re.search(r"^flags\s*: (.*)$", info, re.M)
    flags = set(flags[1].split()) if flags else set()
    return {
        "processor": model[1] if model else platform.machine(),
        "family_model_stepping": "/".join(n[1] for n in numbers if n),
        "instruction_set": instruction_set(flags),
        "instruction_set_chosen": os.environ.get("REFRACT_CPU_ISA"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def revision():
    def git(*arguments):
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None

    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"revision": git("rev-parse", "HEAD"), "with_changes": changed != ""}


def figures(node, name=()):
    """Yields (name, {"median", "q25", "q75"}) of everything with quartiles in JSON."""
    if isinstance(node, list):
        for item in node:
            yield from figures(item, name)
    elif isinstance(node, dict):
        # A figure: its name is the path to it, as far as the keys and entries say something.
        if {"median", "q25", "q75"} <= node.keys() and not isinstance(node["median"], dict):
            own = (node["name"],) if "name" in node else ()
            own += (f"÷ {node['yardstick']}",) if "yardstick" in node else ()
            yield ", ".join(name + own), node
            return
        own = tuple(
            f"{key} {node[key]}" if isinstance(node[key], (int, float)) else str(node[key])
            for key in IDENTITY
            if isinstance(node.get(key), (str, int, float))
        )
        for key, value in node.items():
            if key in SINGLE and isinstance(value, (int, float)):
                yield ", ".join((*name, *own, key)), dict.fromkeys(("median", "q25", "q75"), value)
            # Names of lists say little compared with the names of their entries.
            inner = (key,) if isinstance(value, dict) else ()
            yield from figures(value, (*name, *own, *inner))


def quickstart_figures(result):
    """The quick start keeps the reports of its rounds."""
    def middle(values):
        values = sorted(values)
        return {"median": values[len(values) // 2], "q25": values[0], "q75": values[-1]}

    for system, reports in result["rounds"].items():
        for quantile in ("p50", "p95", "p99"):
            yield f"{system}, {quantile} ms", middle(
                [report["latency_ms"][quantile] for report in reports]
            )


def number(value):
    return "∞" if value is None else f"{value:.4g}"


def table(rows):
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{number(found['median'])}</td>"
        f"<td>{number(found['q25'])} – {number(found['q75'])}</td></tr>\n"
        for name, found in rows
    )
    return f"<table><tr><th>figure</th><th>median</th><th>quartiles</th></tr>\n{cells}</table>"


def plot(rows):
    """SVG: a dot per figure at its median, a line between its quartiles."""
    rows = [(name, row) for name, row in rows if None not in (row["q25"], row["q75"])]
    ratios = [(name, row) for name, row in rows if re.search(r"over|ratio|/|÷", name)]
    # Times and ratios have no common axis; ratios are what pages quote.
    rows = ratios or rows
    if not rows:
        return ""
    left, width, line = 460, 460, 20
    most = max(row["q75"] for _, row in rows) or 1
    at = lambda value: left + width * max(0, value) / most  # noqa: E731
    height = line * (len(rows) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 80}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
    ]
    if most > 1 and ratios:
        parts.append(
            f'<line x1="{at(1):.1f}" y1="0" x2="{at(1):.1f}" '
            f'y2="{height}" stroke="#999" stroke-dasharray="3"/>'
        )
    for place, (name, row) in enumerate(rows):
        y = line * (place + 1)
        parts.append(
            f'<text x="8" y="{y + 4}">{html.escape(name)}</text>'
            f'<line x1="{at(row["q25"]):.1f}" y1="{y}" x2="{at(row["q75"]):.1f}" y2="{y}" '
            f'stroke="#06c" stroke-width="3"/>'
            f'<circle cx="{at(row["median"]):.1f}" cy="{y}" r="4" fill="#06c"/>'
            f'<text x="{at(row["q75"]) + 8:.1f}" y="{y + 4}">{number(row["median"])}</text>'
        )
    parts.append("</svg>")
    return "\n".join(parts)


def arguments(wanted, short):
    """The command; with `short`, other values of its options or further ones."""
    command = [str(part) for part in wanted.command]
    rest = list(wanted.short if short else ())
    while rest:
        option = rest.pop(0)
        value = [rest.pop(0)] if rest and not rest[0].startswith("--") else []
        # `short` has other values of options that the command has, and options that it lacks.
        if option in command:
            command[command.index(option) + 1] = value[0]
        else:
            command += [option, *value]
    return command


def prepare(name, out, short):
    """Makes the files of a preparation, once for all subjects; their folder."""
    preparation = PREPARATIONS[name]
    folder = out / "prepared" / f"{name}{'_short' if short else ''}"
    # A preparation that was interrupted has no such file, and begins anew.
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [part.format(folder=folder) for part in arguments(preparation, short)]
        subprocess.run(command, check=True, cwd=ROOT,
                       env={**os.environ, **preparation.environment})
        (folder / "done").touch()
    return folder


def result(path):
    """JSON of a file, or of several as one object."""
    if "*" not in path.name:
        return json.loads(path.read_text(encoding="utf-8"))
    files = sorted(path.parent.glob(path.name))
    if not files:
        raise OSError(f"there is no {path}")
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def absent(subject):
    """What the subject needs and this machine lacks; or None."""
    for need in subject.needs:
        if not shutil.which(need) and not pathlib.Path(need).is_file():
            return f"there is no {need}"
    for module in subject.modules:
        if importlib.util.find_spec(module) is None:
            return f"there is no Python module {module}"
    return None


def run(subject, out, short, head):
    """Returns the record of one subject. `head`: the revision of the tree."""
    why = absent(subject)
    if why:
        return {"skipped": why}
    folder = out / subject.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    places = {"out": folder / "result.json", "folder": folder}
    began = time.monotonic()
    record = {}
    try:
        command = arguments(subject, short)
        for name in PREPARATIONS:
            if any(f"{{{name}}}" in part for part in command):
                places[name] = prepare(name, out, short)
        command = [part.format(**places) for part in command]
        record["load_before"] = os.getloadavg()[0]
        record["command"] = [part.replace(str(ROOT) + "/", "") for part in command]
        found = ROOT / subject.result.format(**places)
        # The result of an earlier run must not be taken for this one's.
        found.unlink(missing_ok=True)
        done = subprocess.run(command, check=False, cwd=ROOT,
                              env={**os.environ, **subject.environment})
        if done.returncode == SKIPPED:
            return {"skipped": "the command says why (exit status 77)"}
        done.check_returncode()
        record["result"] = result(found)
        parts = (record["result"], *record["result"].values())
        built = next((part["revision"] for part in parts
                      if isinstance(part, dict) and part.get("revision")), None)
        if built and not str(head).startswith(built):
            record["built_at"] = built
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        record["failed"] = str(error)
    record["seconds"] = round(time.monotonic() - began, 1)
    return record


def write(out, report):
    """Writes report.json and report.html."""
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    host = report["machine"]
    text = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Measured figures</title>',
        "<style>body{font-family:sans-serif}td,th{text-align:left;padding:0 1em 0 0}</style>",
        "<h1>Measured figures</h1>",
        f"<p>{html.escape(host['processor'])} ({host['instruction_set']}), {host['cpus']} "
        f"processors, revision {report['revision']}"
        f"{' with changes' if report['with_changes'] else ''}, {report['date']}"
        f"{', few rounds' if report['short'] else ''}.</p>",
    ]
    for subject in SUBJECTS:
        record = report["subjects"].get(subject.name)
        if record is None:
            continue
        text.append(f"<h2>{html.escape(subject.title)}</h2>")
        for state in ("skipped", "failed"):
            if state in record:
                text.append(f"<p>{state}: {html.escape(record[state])}</p>")
        if "result" not in record:
            continue
        find = (quickstart_figures if subject.name.startswith("quickstart")
                else figures)
        rows = list(find(record["result"]))
        command = html.escape(" ".join(record["command"]))
        environment = " ".join(f"{k}={v}" for k, v in subject.environment.items())
        text += [
            f"<p><code>{environment} {command}</code>, load before: "
            f"{record['load_before']:.1f}</p>",
            plot(rows), table(rows),
        ]
        if "built_at" in record:
            text.append(f"<p>The programs are of another revision: {record['built_at']}.</p>")
    (out / "report.html").write_text("\n".join(text) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "artifacts" / "report",
                        metavar="DIR", help="default: artifacts/report")
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--short", action="store_true", help="few rounds")
    parser.add_argument("--list", action="store_true", help="name the subjects and stop")
    options = parser.parse_args()
    chosen = [subject for subject in SUBJECTS if re.search(options.only, subject.name)]
    if not chosen:
        parser.error(f"--only: no subject matches {options.only!r}")
    if options.list:
        for subject in chosen:
            print(f"{subject.name:24} {subject.title}")
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    )
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": machine(), **revision(), "date": time.strftime("%Y-%m-%d"),
        "short": options.short, "subjects": {},
    }
    failed = []
    for subject in chosen:
        print(f"== {subject.name}: {subject.title}", flush=True)
        record = run(subject, out, options.short, report["revision"])
        report["subjects"][subject.name] = record
        write(out, report)  # results survive a later failure
        if "failed" in record:
            failed.append(subject.name)
            print(f"{subject.name} failed: {record['failed']}", flush=True)
        if "built_at" in record:
            print(f"{subject.name}: the programs are of revision {record['built_at']}")
        if "skipped" in record:
            print(f"{subject.name} skipped: {record['skipped']}", flush=True)
    print(f"== {out}/report.html")
    checked = subprocess.run(
        [PYTHON, ROOT / "bench" / "figures.py", "--check"], check=False
    ).returncode
    return 1 if failed or checked else 0


if __name__ == "__main__":
    sys.exit(main())
