"""Figures that pages quote, compared with bench/results/quoted.json.

quoted.json is a list of measurements. Each has `what`, `command`, `machine`, where
known `revision`, `values` and `quotes`. A value is a number, or a place in a kept
report: {"report": FILE, "rows": part of a row's name, "take": "min" or "max" of the
rows' medians}, or {"report": FILE, "against": label, "batch": items} for a geometric
mean of `bench_runtime`. `quotes` has, for each page, texts with values in braces, formatted
as Python does: "at {qps:.1f} queries/s". A page must have each text; line breaks
do not matter.

README.md must have no other figure: no number with a decimal point beyond its
quotes, code, links and EXEMPT.
"""

import json
import re

COMPLETE = "README.md"
EXEMPT = ("Apache-2.0", "Xeon 2.8 GHz")


def value_of(value, results):
    if not isinstance(value, dict):
        return value
    run = json.loads((results / value["report"]).read_text(encoding="utf-8"))
    if "against" in value:
        means = {(entry["against"], entry["batch"]): entry for entry in run["summary"]}
        return means[value["against"], value["batch"]]["geometric_mean"]
    rows = run["bench"]["rows"] + run["torch"]["rows"]
    found = [row["median"] for row in rows if value["rows"] in row["name"]]
    if not found:
        raise SystemExit(f"{value['report']} has no row {value['rows']!r}")
    return {"min": min, "max": max}[value["take"]](found)


def one_line(text):
    return re.sub(r"\s+", " ", text)


def problems(root):
    """Quotes of pages that no report has, and the reverse; texts."""
    results = root / "bench" / "results"
    measurements = json.loads((results / "quoted.json").read_text(encoding="utf-8"))
    pages, found = {}, []
    for measurement in measurements:
        values = {
            name: value_of(value, results) for name, value in measurement["values"].items()
        }
        for page, texts in measurement["quotes"].items():
            if page not in pages:
                pages[page] = one_line((root / page).read_text(encoding="utf-8"))
            for text in texts:
                text = one_line(text.format(**values))
                if text not in pages[page]:
                    found.append(f"{page}: should say {text!r} ({measurement['what']})")
                elif page == COMPLETE:
                    # Once a figure, no longer an unknown one.
                    pages[page] = pages[page].replace(text, " … ")
    rest = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", pages.get(COMPLETE, ""))
    for text in EXEMPT:
        rest = rest.replace(text, " ")
    for figure in re.finditer(r"(.{0,30})(?<![\w.])(\d+\.\d+)(?![\w.]*\.\w)", rest):
        found.append(f"{COMPLETE}: no report has {figure[2]} in {figure[0].strip()!r}")
    return found
