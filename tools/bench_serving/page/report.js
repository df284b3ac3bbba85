// One run, or two side by side.

const runs = JSON.parse(document.getElementById("data").textContent).runs;
const NAMES = runs.map((run) => run.name);

function row(table, cells, head = false, className = "") {
  const made = table.insertRow();
  made.className = className;
  for (const text of cells) {
    const cell = document.createElement(head ? "th" : "td");
    cell.textContent = text;
    made.append(cell);
  }
}

function drawHead() {
  document.getElementById("title").textContent = runs
    .map((run) => `${run.options.model} at ${significant(run.qps)} queries/s`)
    .filter((text, i, all) => all.indexOf(text) === i)
    .join(" · ");
  const key = document.getElementById("key");
  runs.forEach((run, i) => {
    const swatch = document.createElement("i");
    swatch.className = `swatch of${i}`;
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = `${NAMES[i]} (${run.time ?? ""})`;
    key.append(swatch, name);
  });
  const warnings = document.getElementById("warnings");
  const warn = (text) => {
    const made = document.createElement("p");
    made.className = "warning";
    made.textContent = text;
    warnings.append(made);
  };
  runs.forEach((run, i) => {
    if (run.client_was_late) {
      warn(`${NAMES[i]}: the client itself was late; its latencies include that.`);
    }
    if (run.errors > 0) {
      warn(`${NAMES[i]}: ${run.errors} of ${run.queries} queries have no ` +
           "answer and are in no percentile.");
    }
  });
  if (runs.length > 1 && runs[0].machine?.cpu !== runs[1].machine?.cpu) {
    warn("The runs are of different processors.");
  }
}

function drawFigures() {
  const table = document.getElementById("figures");
  const two = runs.length > 1;
  row(table, ["", ...NAMES, ...(two ? ["second ÷ first"] : [])], true);
  const figure = (name, of) => {
    const values = runs.map(of);
    if (values.some((v) => v === undefined)) return;
    // A latency is null where no query was answered.
    const ratio = two && values[0] > 0 && values[1] !== null ? [significant(values[1] / values[0], 3)] : [""];
    row(table, [name, ...values.map((v) => (v === null ? "–" : significant(v))), ...(two ? ratio : [])]);
  };
  figure("offered, queries/s", (run) => run.offered_qps);
  figure("answered, queries/s", (run) => run.achieved_qps);
  figure("items/s", (run) => run.items_per_s);
  figure("queries", (run) => run.queries);
  figure("without an answer", (run) => run.errors);
  if (runs.every((run) => run.slo_ms)) {
    figure("within the SLO, queries/s", (run) => run.goodput_qps);
  }
  if (runs.every((run) => run.max_qps)) {
    figure("highest rate within the SLO, queries/s", (run) => run.max_qps);
  }
  for (const key of ["mean", "p50", "p90", "p95", "p99", "p99.9", "max"]) {
    figure(`latency ${key}, ms`, (run) => run.latency_ms[key]);
  }
  figure("sent late by, p99, ms", (run) => run.sent_late_ms.p99);
  figure("bytes per request", (run) => run.request_bytes);
  figure("bytes per answer", (run) => run.response_bytes);
}

// The point of a sorted list nearest to x.
function nearest(points, of, x) {
  return points.reduce(
    (best, p) => (Math.abs(of(p) - x) < Math.abs(of(best) - x) ? p : best),
    points[0]);
}

function drawPercentiles() {
  const drawn = runs.filter((run) => run.percentiles.length > 0);
  if (drawn.length === 0) return;
  const all = drawn.flatMap((run) => run.percentiles);
  const x = percentileScale(all.map(([fraction]) => fraction));
  x.label = (f) => (f === 0 ? "min" : `p${significant(100 * f, 8)}`);
  const slos = runs.map((run) => run.slo_ms).filter((ms) => ms > 0);
  const y = logScale([...all.map(([, ms]) => ms), ...slos]);
  const chart = plot(
    document.getElementById("percentiles"), x, y, "percentile", "ms",
    (at) => runs.map((run, i) => {
      if (run.percentiles.length === 0) return `${NAMES[i]}: no answer`;
      const [fraction, ms] = nearest(run.percentiles, ([f]) => x.at(f), at);
      return `${NAMES[i]}: p${significant(100 * fraction, 6)} ${significant(ms)} ms`;
    }).join("\n"));
  for (const slo of new Set(slos)) {
    chart.svg.append(element("line", {
      class: "slo", x1: MARGIN.left, x2: WIDTH - MARGIN.right,
      y1: chart.py(slo), y2: chart.py(slo),
    }));
  }
  runs.forEach((run, i) => line(chart, run.percentiles, `line run${i}`));
}

function drawTimeline() {
  const points = runs.flatMap((run) => run.timeline.map((p) => ({ run, ...p })));
  if (points.length === 0) return;
  const x = linearScale(points.map((p) => p.at_s + p.run.timeline_width_s));
  const middle = (run, p) => p.at_s + run.timeline_width_s / 2;
  const at = (fraction, of) => runs.map((run, i) => {
    const p = nearest(run.timeline, (q) => x.at(middle(run, q)), fraction);
    return `${NAMES[i]}: ${significant(p.at_s, 6)} s  ${of(run, p)}`;
  }).join("\n");
  const times = points.filter((p) => p.succeeded > 0);
  if (times.length > 0) {
    const chart = plot(
      document.getElementById("latencies"), x,
      logScale(times.flatMap((p) => [p.p50_ms, p.p99_ms])), "seconds", "ms",
      (fraction) => at(fraction, (run, p) => (p.succeeded === 0 ? "no answer"
        : `p50 ${significant(p.p50_ms)}, p99 ${significant(p.p99_ms)}, ` +
          `max ${significant(p.max_ms)} ms`)));
    runs.forEach((run, i) => {
      const of = (key) => run.timeline.map(
        (p) => [middle(run, p), p.succeeded > 0 ? p[key] : null]);
      line(chart, of("p99_ms"), `line run${i}`);
      line(chart, of("p50_ms"), `thin run${i}`);
    });
  }
  const rate = (run, count) => count / run.timeline_width_s;
  const chart = plot(
    document.getElementById("rates"), x,
    linearScale(points.map((p) => rate(p.run, p.queries))),
    "seconds", "queries/s",
    (fraction) => at(fraction, (run, p) =>
      `${significant(rate(run, p.queries))} due/s, ` +
      `${p.queries - p.succeeded} without an answer`));
  runs.forEach((run, i) => {
    line(chart, run.timeline.map((p) => [middle(run, p), rate(run, p.queries)]),
         `line run${i}`);
    for (const p of run.timeline) {
      if (p.queries === p.succeeded) continue;
      const top = chart.py(rate(run, p.queries - p.succeeded));
      chart.svg.append(element("rect", {
        class: `failed fill${i}`, x: chart.px(p.at_s), y: top,
        width: chart.px(p.at_s + run.timeline_width_s) - chart.px(p.at_s),
        height: chart.py(0) - top,
      }));
    }
  });
}

function drawTries() {
  if (!runs.some((run) => run.tries)) return;
  document.getElementById("search").hidden = false;
  const table = document.getElementById("tries");
  row(table, ["run", "queries/s", "without an answer", "p99, ms", ""], true);
  runs.forEach((run, i) => {
    for (const one of run.tries ?? []) {
      row(table, [NAMES[i], significant(one.qps), one.queries - one.succeeded,
                  one.p99_ms === null ? "–" : significant(one.p99_ms),
                  one.passed ? "passed" : "failed"]);
    }
  });
}

function drawConditions() {
  const table = document.getElementById("conditions");
  row(table, ["", ...NAMES], true);
  const keys = new Set(runs.flatMap((run) => Object.keys(run.options)));
  const text = (value) => (value === undefined ? "" : typeof value === "object"
    ? JSON.stringify(value) : String(value));
  const condition = (name, of) => {
    const values = runs.map((run) => text(of(run)));
    row(table, [name, ...values], false,
        new Set(values).size > 1 ? "differs" : "");
  };
  condition("Refract", (run) => run.version);
  condition("revision", (run) => run.revision);
  condition("machine", (run) => run.machine);
  condition("seed", (run) => run.seed);
  for (const key of keys) condition(key, (run) => run.options[key]);
}

drawHead();
drawFigures();
drawPercentiles();
drawTimeline();
drawTries();
drawConditions();
