"""Figures that pages quote, compared with bench/results/quoted.json.

quoted.json is a list of measurements. Each has `what`, `subject` (of
bench/subjects.py), `machine`, where known `revision`, `values` and `quotes`. A value is a number, or a place in a kept
report: {"report": FILE, "rows": part of a row's name, "take": "min" or "max" of the
rows' medians}, or {"report": FILE, "against": label, "batch": items} for a geometric
mean of `bench_runtime`. `quotes` has, for each page, texts with values in braces, formatted
as Python does: "at {qps:.1f} queries/s". A page must have each text; line breaks
do not matter.

README.md must have no other figure: no number with a decimal point beyond its
quotes, code, links and EXEMPT.

A section of README.md or docs/measurements with a table of figures says which subject
makes them again: "Subject `models`", "Subjects `a` and `b`", or "No subject: …" for
what is not measured here.
"""

import json
import re

from bench.subjects import SUBJECTS

COMPLETE = "README.md"
EXEMPT = ("Apache-2.0", "Xeon 2.8 GHz")
NAMED = re.compile(r"\b[Ss]ubjects? (`[a-z][^.:;|]*)")
TABLE_OF_FIGURES = re.compile(r"^\|.*(?<![\w.])\d+\.\d.*", re.MULTILINE)


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


def without_subject(root):
    """Sections whose figures no subject makes, and the reverse; texts."""
    known = {subject.name for subject in SUBJECTS}
    named, found = set(), []
    for path in (root / COMPLETE, *sorted((root / "docs" / "measurements").glob("*.md"))):
        for section in re.split(r"^#+ ", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            names = {
                name for text in NAMED.findall(one_line(section))
                for name in re.findall(r"`([a-z]\w*)`", text)
            }
            named |= names
            title = f"{path.name}, {section.partition(chr(10))[0]!r}"
            found += [f"{title}: there is no subject {name}" for name in names - known]
            figures = TABLE_OF_FIGURES.search(section)
            if figures and not names and "No subject: " not in section:
                found.append(f"{title}: no subject makes the table of {figures[0]!r}")
    found += [f"no page names the subject {name}" for name in sorted(known - named)]
    for path in sorted((root / "bench" / "results").glob("*/*.json")):
        if path.stem not in known:
            found.append(f"{path.relative_to(root)}: there is no such subject")
    return found


def problems(root):
    """Quotes of pages that no report has, and the reverse; texts."""
    results = root / "bench" / "results"
    measurements = json.loads((results / "quoted.json").read_text(encoding="utf-8"))
    pages, found = {}, without_subject(root)
    for measurement in measurements:
        if measurement["subject"] not in {subject.name for subject in SUBJECTS}:
            found.append(f"quoted.json: there is no subject {measurement['subject']}")
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
