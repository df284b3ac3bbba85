#!/usr/bin/env python3
"""Compares predicted and measured times of cuts of models.

    python3 scripts/check_predictions.py --refract build/release/bin/refract \\
        --transport tcp --batch 256 --json predictions.json \\
        DIR/NAME…

Per model, one after the other: refract calibrate, refract profile, refract
partition --verify with at least five forced cuts, over a CPU node and a GPU
node of this machine, which should be idle otherwise. All three run directly
after one another, because the speed of most machines drifts within minutes.
Prints a table and writes the figures as JSON.

A model passes if every forced cut's and every alternative's predicted latency is
0.8 to 1.25 of the measured latency, the rank correlation is at least 0.9, and no
message has more than 1.02 times the predicted bytes. Exit status 1 if a model
fails; --no-bars only reports.
"""

import argparse
import datetime
import json
import pathlib
import platform
import subprocess
import sys
import tempfile

RATIO = (0.8, 1.25)
RANK_CORRELATION = 0.9
BYTES = 1.02
LEAST_FORCED_CUTS = 5


def run(*command):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")


def verify(arguments, model, folder):
    calibration = folder / "calibration.textproto"
    report = folder / "report.json"
    profile = folder / "profile.textproto"
    refract = arguments.refract
    run(
        refract, "calibrate", "--output", calibration,
        "--transport", arguments.transport,
    )
    run(
        refract, "profile", model, "--output", profile,
        "--batch", ",".join(map(str, arguments.profile_batches)),
        "--repeat", arguments.repeat,
    )
    run(
        refract, "partition", model, "--method", "optimal",
        "--cn-profile", profile, "--calibration", calibration,
        "--transport", arguments.transport, "--batch", arguments.batch,
        "--verify", "--verify-rounds", arguments.rounds,
        "--verify-cuts", arguments.cuts, "--json", report,
        *arguments.partition_options,
    )
    return json.loads(report.read_text())["partition"]["verification"]


def judge(found):
    """The missed bars, as a list of lines."""
    wrong = []
    cuts = found["cuts"]
    forced = sum(cut["forced"] for cut in cuts)
    if forced < LEAST_FORCED_CUTS:
        wrong.append(f"only {forced} forced cuts")
    for cut in cuts:
        ratio = cut["predicted_over_measured"]
        if not RATIO[0] <= ratio <= RATIO[1]:
            wrong.append(f"{cut['name']}: predicted / measured {ratio:.2f}")
        bytes_ratio = cut["bytes_over_predicted"]
        if bytes_ratio is not None and bytes_ratio > BYTES:
            wrong.append(f"{cut['name']}: bytes / predicted {bytes_ratio:.4f}")
    correlation = found["rank_correlation"]
    if correlation is None or correlation < RANK_CORRELATION:
        wrong.append(
            "no rank correlation"
            if correlation is None
            else f"rank correlation {correlation:.3f}"
        )
    return wrong


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--refract", default="build/release/bin/refract")
    parser.add_argument("--transport", default="tcp", choices=["tcp", "shm"])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument(
        "--profile-batches", type=int, nargs="+", default=[16, 64, 256]
    )
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--cuts", type=int, default=6)
    parser.add_argument("--json")
    parser.add_argument("--no-bars", action="store_true")
    parser.add_argument(
        "--partition-options", nargs=argparse.REMAINDER, default=[],
        help="the rest of the line goes to refract partition",
    )
    parser.add_argument("models", nargs="+", metavar="DIR/NAME")
    arguments = parser.parse_args()
    results = {}
    failed = False
    print(
        f"{'model':12} {'cuts':>4} {'predicted / measured':>22} "
        f"{'rank':>6} {'bytes':>7}"
    )
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            found = verify(arguments, model, pathlib.Path(folder))
        name = pathlib.Path(model).name
        results[name] = found
        ratios = [cut["predicted_over_measured"] for cut in found["cuts"]]
        sent = [
            cut["bytes_over_predicted"]
            for cut in found["cuts"]
            if cut["bytes_over_predicted"] is not None
        ]
        print(
            f"{name:12} {len(ratios):4} {min(ratios):12.2f} to "
            f"{max(ratios):6.2f} {found['rank_correlation'] or 0:6.3f} "
            f"{max(sent, default=1):7.4f}",
            flush=True,
        )
        for line in judge(found):
            failed = True
            print(f"  {line}", flush=True)
    if arguments.json:
        document = {
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(
                timespec="seconds"
            ),
            "processor": processor(),
            "kernel": platform.release(),
            "options": {
                key: value
                for key, value in vars(arguments).items()
                if key not in ("refract", "json", "models", "no_bars")
            },
            "models": results,
        }
        pathlib.Path(arguments.json).write_text(
            json.dumps(document, indent=1) + "\n", encoding="utf-8"
        )
    return 1 if failed and not arguments.no_bars else 0


if __name__ == "__main__":
    sys.exit(main())
