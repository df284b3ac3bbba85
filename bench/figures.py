#!/usr/bin/env python3
"""Writes the tables of docs/measurements whose reports are in bench/results.

    python3 bench/figures.py            # writes them, lays the reports out
    python3 bench/figures.py --check    # fails where a page differs from its report

A report is kept with seven digits of each number and a line per record that fits in one.
A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`. Figures in
other text are compared with bench/results/quoted.json (bench/quotes.py).
"""

import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import quotes  # noqa: E402

PAGES = ROOT / "docs" / "measurements"
RESULTS = ROOT / "bench" / "results"
MARKED = re.compile(
    r"(?P<begin><!-- table: (?P<name>[\w.]+) -->\n).*?(?P<end><!-- end of table -->)",
    re.DOTALL,
)


def laid_out(value, indent=""):
    """`value` as JSON: seven digits of each number, a line per record that fits in one."""
    if isinstance(value, float):
        return json.dumps(float(f"{value:.7g}"))
    if not value or not isinstance(value, (dict, list)):
        return json.dumps(value)
    deeper = indent + " "
    parts = ([laid_out(part, deeper) for part in value] if isinstance(value, list) else
             [f"{json.dumps(key)}: {laid_out(part, deeper)}" for key, part in value.items()])
    begin, end = "[]" if isinstance(value, list) else "{}"
    line = begin + ", ".join(parts) + end
    if len(indent + line) <= 100 and "\n" not in line:
        return line
    return f"{begin}\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}{end}"


def report(name):
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def row(*cells):
    return "| " + " | ".join(cells) + " |\n"


def header(*cells):
    return row(*cells) + row(*["---"] * len(cells))


def figure(value):
    """Three digits below 1, two decimals from 1 on."""
    return f"{value:.3f}" if value < 0.9995 else f"{value:.2f}"


def quartiles(entry):
    text = "{} [{}, {}]".format(*(figure(entry[k]) for k in ("median", "q25", "q75")))
    return text if entry["reached"] else f"**{text}**"


def gpu_check():
    """Ratios of the kept runs of scripts/gpu_check.sh."""
    runs = [report("h100/gpu_check.json"), report("h200/gpu_check.json")]
    text = header("ratio", "bar", "H100", "H200")
    for entries in zip(*(run["bench"]["rows"] + run["torch"]["rows"] for run in runs)):
        entry = entries[0]
        side, sign = ("at_most", "≤") if "at_most" in entry else ("at_least", "≥")
        text += row(entry["name"], f"{sign} {entry[side]:g}", *map(quartiles, entries))
    return text


def gather(name):
    """Time of others ÷ the engine's, first quartiles, by batch × look-ups. Last, the time of
    bags and cat ÷ that of loading the same lines, medians: the ratio that memory allows."""
    columns = [
        ("fp32", "embedding_bags_and_cat", "fp32: bags and cat"),
        ("fp32", "fbgemm_table_batched", "fp32: FBGEMM"),
        ("fp16", "fbgemm_table_batched", "fp16: FBGEMM"),
        ("tbe-int8", "fbgemm_table_batched", "int8: FBGEMM"),
        ("tbe-int4", "fbgemm_table_batched", "int4: FBGEMM"),
        ("fp32", "load_every_line", "fp32: lines only"),
        ("fp16", "load_every_line", "fp16: lines only"),
        ("tbe-int8", "load_every_line", "int8: lines only"),
        ("tbe-int4", "load_every_line", "int4: lines only"),
        ("tbe-int8", "refract_fp32", "int8: own fp32"),
        ("tbe-int4", "refract_fp32", "int4: own fp32"),
    ]
    cases = {}
    for result in report(name)["results"]:
        key = result["look_ups"], result["batch"]
        cases.setdefault(key, {})[result["format"]] = result
    formats_measured = {form for formats in cases.values() for form in formats}
    # A report of fewer formats has fewer columns.
    columns = [column for column in columns if column[0] in formats_measured]
    text = header("batch × look-ups", *(title for _, _, title in columns),
                  "fp32: bags and cat ÷ lines only")
    for (look_ups, batch), formats in sorted(cases.items()):
        ratios = [formats[form][other]["time_over_refract"]["q25"] for form, other, _ in columns]
        bags, lines = (formats["fp32"][other]["us"]["median"]
                       for other in ("embedding_bags_and_cat", "load_every_line"))
        text += row(f"{batch} × {look_ups}", *(f"{ratio:.2f}" for ratio in (*ratios, bags / lines)))
    return text


def gather_cores():
    """Rate of two cores ÷ that of one."""
    runs = [report(f"{machine}/gather_cores.json")["results"] for machine in ("xeon207", "zen4", "zen3")]
    text = header("batch × look-ups", "Xeon", "Zen 4", "Zen 3")
    for results in zip(*runs):
        text += row(f"{results[0]['batch']} × {results[0]['look_ups']}",
                    *(quartiles({**result["rate_of_two_over_one"], "reached": True})
                      for result in results))
    return text


def roofline():
    """Estimated ÷ measured costs of all operators of a model, by batch."""
    cases = {}
    for case in report("xeon207/roofline.json")["models"]:
        cases.setdefault(case["model"], {})[case["batch"]] = case["estimated_over_measured"]
    batches = sorted({batch for model in cases.values() for batch in model})
    text = header("model", *(f"batch {batch}" for batch in batches))
    for model, ratios in cases.items():
        text += row(f"`{model}`", *(f"{ratios[batch]:.2f}" for batch in batches))
    return text


def layers(name):
    """Time of others ÷ Refract's for dense layers, by batch."""
    columns = {"at_linear_relu": "at::linear + relu_", "mkl_packed_relu": "MKL packed",
               "onednn_packed": "oneDNN packed", "fma_loop": "FMA loop"}
    text = header("batch", "Refract µs", *columns.values())
    for result in report(name)["layers"]:
        ratios = (result[key]["time_over_refract"] for key in columns)
        text += row(str(result["batch"]), f"{result['refract']['us']['median']:.0f}",
                    *(quartiles({**ratio, "reached": True}) for ratio in ratios))
    return text


def models(name):
    """Time of others ÷ Refract's for whole models, by batch."""
    run = report(name)
    batches = sorted({result["batch"] for result in run["models"]})
    sides = [
        (other, title, batch)
        for other, title in (("torchscript", "TorchScript"), ("aotinductor", "AOTInductor"))
        for batch in batches
    ]
    results = {(result["model"], result["batch"]): result for result in run["models"]}
    text = header("model", *(f"Refract µs, {batch}" for batch in batches),
                  *(f"{title}, {batch}" for _, title, batch in sides))
    for model in dict.fromkeys(result["model"] for result in run["models"]):
        times = (results[model, batch]["refract"]["us"]["median"] for batch in batches)
        ratios = (results[model, batch][other]["time_over_refract"]
                  for other, _, batch in sides)
        text += row(f"`{model}`", *(f"{time:.0f}" for time in times),
                    *(quartiles({**ratio, "reached": True}) for ratio in ratios))
    summary = {(entry["against"], entry["batch"]): entry for entry in run["summary"]}
    for title, key in (("geometric mean of q25", "geometric_mean"), ("least q25", "least")):
        text += row(title, *("" for _ in batches),
                    *(f"{summary[other, batch][key]:.2f}" for other, _, batch in sides))
    return text


def predicted_p99():
    """Predicted and measured p99 by load, below the knee and beyond."""
    text = header("model", "rate/s", "of the knee", "requests", "p50, predicted ÷ measured",
                  "p99, ms, predicted", "measured", "ratio")
    for name in ("dlrm_64", "dlrm_8", "deepfm_16", "din_16"):
        run = report(f"xeon207/predicted_p99_{name}.json")
        for point in run["points"]:
            ratio = f"{point['p99_ratio']:.2f}"
            within = 0.75 <= point["p99_ratio"] <= 1.33
            text += row(
                f"{run['model']}, {run['items']} items", f"{point['requests_per_s']:.0f}",
                f"{point['part_of_knee']:.2f}", str(point["requests"]),
                f"{point['p50_ratio']:.2f}", f"{point['predicted_p99_ms']:.1f}",
                f"{point['measured_p99_ms']:.1f}", ratio if within else f"**{ratio}**",
            )
    return text


def operations():
    """Ratios of the front ends, of metrics and of the load generator."""
    text = header("ratio", "bar", "median [quartiles]", "rounds")
    for title, bar, name, key, reached in (
        ("HTTP ÷ gRPC, p50, bytes made before, 33 items", "≤ 1.15",
         "http_cost_lean_33", "http_over_grpc_p50", lambda r: r <= 1.15),
        ("the same, 270 items", "≤ 1.15",
         "http_cost_lean_270", "http_over_grpc_p50", lambda r: r <= 1.15),
        ("HTTP ÷ gRPC, p50, tritonclient, 33 items", "≤ 1.15",
         "http_cost_triton_33", "http_over_grpc_p50", lambda r: r <= 1.15),
        ("the same, 270 items", "≤ 1.15",
         "http_cost_triton_270", "http_over_grpc_p50", lambda r: r <= 1.15),
        ("metrics and 1 % tracing ÷ neither, answers", "≥ 0.98",
         "metrics_cost", "scraped_over_off", lambda r: r >= 0.98),
    ):
        run = report(f"xeon207/{name}.json")
        entry = {**run[key], "reached": reached(run[key]["median"])}
        text += row(title, bar, quartiles(entry), str(len(run["rounds"])))
    return text


TABLES = {
    "models": lambda: models("xeon207/models.json"),
    "models_zero05": lambda: models("xeon207/models_zero05.json"),
    "models_zen3": lambda: models("zen3/models.json"),
    "models_zen3_zero05": lambda: models("zen3/models_zero05.json"),
    "models_v3": lambda: models("zen3/models_v3.json"),
    "models_zen4": lambda: models("zen4/models.json"),
    "models_zen4_zero05": lambda: models("zen4/models_zero05.json"),
    "layers": lambda: layers("zen3/layers.json"),
    "layers_zen4": lambda: layers("zen4/layers.json"),
    "operations": operations,
    "predicted_p99": predicted_p99,
    "gpu_check": gpu_check,
    "gather": lambda: gather("xeon207/gather.json"),
    "gather_cores": gather_cores,
    "roofline": roofline,
    "gather_zen3": lambda: gather("zen3/gather.json"),
    "gather_zen4": lambda: gather("zen4/gather.json"),
}


def written(text):
    """`text` of a page with its tables as the reports have them."""
    return MARKED.sub(
        lambda found: found["begin"] + TABLES[found["name"]]() + found["end"], text
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    names, wrong = set(), []
    for kept in sorted(RESULTS.rglob("*.json")):
        text = kept.read_text(encoding="utf-8")
        if text != laid_out(json.loads(text)) + "\n":
            wrong.append(str(kept.relative_to(RESULTS)))
            if not options.check:
                kept.write_text(laid_out(json.loads(text)) + "\n", encoding="utf-8")
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        names.update(found["name"] for found in MARKED.finditer(text))
        if written(text) == text:
            continue
        wrong.append(page.name)
        if not options.check:
            page.write_text(written(text), encoding="utf-8")
    for name in sorted(set(TABLES) - names):
        print(f"no page has the table {name}")
        return 1
    for name in wrong:
        print(f"{name}: {'is not as this script writes it' if options.check else 'written'}")
    found = quotes.problems(ROOT)
    for problem in found:
        print(problem)
    return 1 if found or (wrong and options.check) else 0


if __name__ == "__main__":
    sys.exit(main())
