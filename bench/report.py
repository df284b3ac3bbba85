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
bench/results: whoever publishes them does, with the machine's name. Exit status 1
when a subject failed or a page quotes a figure that the kept reports do not have.
"""

import argparse
import dataclasses
import html
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.lib.nodes import BUILD  # noqa: E402

# Fields that tell entries of one list from another, in the order of a name.
IDENTITY = (
    "name", "model", "format", "op", "mode", "level", "against", "bytes", "batch",
    "look_ups", "load",
)
# Exit status of what cannot run on this machine.
SKIPPED = 77
# Figures that have no quartiles.
SINGLE = ("geometric_mean", "least", "p99_beside_over_alone")


@dataclasses.dataclass(frozen=True)
class Subject:
    """A measurement: commands with {out} for the JSON file, {models} for a folder."""

    name: str
    title: str
    command: tuple
    short: tuple = ()  # arguments that --short adds or replaces
    needs: tuple = ()  # programs
    result: str = "{out}"  # where the command leaves its JSON


PYTHON = sys.executable
BENCH = BUILD / "bench"


def serving(name, title, *arguments, short=("--rounds", "3")):
    script = f"bench/serving/{name.partition('-')[0]}.py"
    return Subject(
        name, title, (PYTHON, script, *arguments, "--json", "{out}"), short,
        (BUILD / "bin" / "refract-cpu-node",),
    )


def fbgemm():
    """FBGEMM's libraries for bench_gather, each after those that it needs."""
    folder = pathlib.Path(sysconfig.get_paths()["platlib"]) / "fbgemm_gpu"
    names = ("asmjit", "fbgemm", *(
        f"fbgemm_gpu_{part}" for part in
        ("config", "sparse_async_cumsum", "tbe_utils", "tbe_common", "tbe_inference", "py")
    ))
    for name in names:
        if (folder / f"{name}.so").exists():
            yield from ("--op-library", folder / f"{name}.so")


SUBJECTS = (
    Subject("layers", "Dense layers on a CPU: others ÷ Refract",
            (BENCH / "bench_runtime", "layers", "--json", "{out}"),
            ("--rounds", "5"), (BENCH / "bench_runtime",)),
    Subject("models", "Whole models on a CPU: others ÷ Refract",
            (BENCH / "bench_runtime", "models", "{models}", "--json", "{out}"),
            ("--rounds", "5"), (BENCH / "bench_runtime",)),
    Subject("beside", "Requests beside a busy process ÷ alone",
            (BENCH / "bench_runtime", "beside", "{models}", "--rounds", "9",
             "--seconds", "0.1", "--json", "{out}"),
            ("--rounds", "5"), (BENCH / "bench_runtime",)),
    Subject("gather", "Table look-ups: others ÷ Refract",
            (BENCH / "bench_gather", "--formats", "fp32,tbe-int8,tbe-int4", "--json", "{out}",
             *fbgemm()),
            ("--rounds", "5", "--gib", "0.1"), (BENCH / "bench_gather",)),
    Subject("batching", "Batching on a CPU: requests per second",
            (BENCH / "bench_scheduler", "--json", "{out}"),
            ("--rounds", "3", "--seconds", "0.2"), (BENCH / "bench_scheduler",)),
    Subject("transport", "Transport on this machine",
            (BUILD / "bin" / "refract", "bench", "transport", "--json", "{out}"),
            ("--rounds", "3", "--time-ms", "5"), (BUILD / "bin" / "refract",)),
    Subject("verbs", "Verbs on soft-RoCE ÷ perftest",
            ("tests/rdma_vm/run_in_vm", "--timeout", "600", "--memory", "2048",
             "--share", "{folder}", "--kernel-arguments",
             "tsc=reliable clocksource=tsc", "--", BENCH / "bench_transport",
             "transport", "--paths", "verbs", "--levels", "path,message", "--modes",
             "busy", "--ops", "pingpong,pull,stream,fan-in", "--sizes",
             "64,1K,4K,64K,256K,2M", "--rounds", "7", "--time-ms", "60",
             "--json", "{out}"),
            ("--rounds", "3", "--sizes", "64"),
            (BENCH / "bench_transport", "qemu-system-x86_64")),
    Subject("quickstart", "A served model: split, and unsplit",
            (PYTHON, "scripts/quickstart.py", "--duration", "8"),
            ("--rounds", "1", "--duration", "2", "--tables-gib", "0.1"),
            (BUILD / "bin" / "refract-cpu-node",), "artifacts/quickstart/results.json"),
    serving("isolation", "Two models on one GPU node: p99 beside ÷ alone",
            "--rounds", "9", short=("--rounds", "3", "--duration", "2")),
    serving("overload-33", "Goodput under overload ÷ capacity, 33 items",
            "--items", "33", short=("--rounds", "1", "--duration", "1")),
    serving("overload-8", "Goodput under overload ÷ capacity, 8 items",
            "--items", "8", short=("--rounds", "1", "--duration", "1")),
    serving("http_cost", "HTTP ÷ gRPC, p50", "--rounds", "9",
            short=("--rounds", "3", "--requests", "30")),
    serving("tls_cost", "TLS ÷ plain gRPC, p50", "--rounds", "9",
            short=("--rounds", "3", "--requests", "30")),
    serving("metrics_cost", "Metrics and 1 % tracing ÷ neither, answers per second of "
            "processor time", "--rounds", "15",
            short=("--rounds", "3", "--requests", "1000", "--interval", "0.1")),
    serving("offered_rate", "Rate of the load generator ÷ tritonclient's",
            short=("--rounds", "3", "--requests", "20000")),
    serving("triton_backend", "Rate within an SLO ÷ Triton's Python backend"),
    serving("unique_rows", "Repeated user features between the nodes",
            short=("--rounds", "3", "--requests", "3")),
    serving("update_rates", "p99 while rows of tables change ÷ steady p99",
            short=("--duration", "2", "--window", "1", "--tables-gib", "0.1",
                   "--rates", "1000")),
    Subject("gpu", "Dense layers on a GPU", ("scripts/gpu_check.sh", "--out", "{folder}"),
            ("--quick",), ("nvidia-smi",), "{folder}/gpu_check.json"),
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


def prepare_models(folder):
    """Makes the models of `bench_runtime`; once for all subjects."""
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(
            [PYTHON, "-m", "bench.runtime.prepare", "--refract", BUILD / "bin" / "refract",
             "--out", folder, "--aoti"],
            check=True, cwd=ROOT,
        )
        (folder / "done").touch()
    return folder


def arguments(subject, short):
    """The command; with `short`, other values of its options or further ones."""
    command = [str(part) for part in subject.command]
    rest = list(subject.short if short else ())
    while rest:
        option = rest.pop(0)
        value = [rest.pop(0)] if rest and not rest[0].startswith("--") else []
        if option in command:
            command[command.index(option) + 1] = value[0]
        else:
            command += [option, *value]
    return command


def run(subject, out, short, head):
    """Returns the record of one subject. `head`: the revision of the tree."""
    for program in subject.needs:
        if not shutil.which(program):
            return {"skipped": f"there is no {program}"}
    folder = out / subject.name
    folder.mkdir(exist_ok=True)
    places = {"out": folder / "result.json", "folder": folder}
    record = {"load_before": os.getloadavg()[0]}
    began = time.monotonic()
    try:
        if "{models}" in subject.command:
            places["models"] = prepare_models(out / "models")
        command = [part.format(**places) for part in arguments(subject, short)]
        record["command"] = [part.replace(str(ROOT) + "/", "") for part in command]
        result = pathlib.Path(subject.result.format(**places))
        (ROOT / result).unlink(missing_ok=True)
        done = subprocess.run(command, check=False, cwd=ROOT)
        if done.returncode == SKIPPED:
            return {"skipped": "the command says why (exit status 77)"}
        done.check_returncode()
        record["result"] = json.loads((ROOT / result).read_text(encoding="utf-8"))
        built = record["result"].get("revision")
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
        find = quickstart_figures if subject.name == "quickstart" else figures
        rows = list(find(record["result"]))
        command = html.escape(" ".join(record["command"]))
        text += [
            f"<p><code>{command}</code>, load before: {record['load_before']:.1f}</p>",
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
            print(f"{subject.name:14} {subject.title}")
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONPATH"] = str(ROOT)
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
