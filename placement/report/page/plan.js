// The page of a capacity plan, from the JSON that `refract plan --json` writes.

const plan = JSON.parse(document.getElementById("data").textContent);
const money = plan.currency;
const css = getComputedStyle(document.documentElement);
const color = (name) => css.getPropertyValue("--" + name).trim();

function add(parent, name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  parent.appendChild(element);
  return element;
}

function table(parent, head, rows, best = -1) {
  const element = add(parent, "table");
  const top = add(element, "tr");
  for (const cell of head) add(top, "th", cell);
  rows.forEach((row, i) => {
    const line = add(element, "tr", undefined, i === best ? "best" : undefined);
    for (const cell of row) add(line, "td", cell);
  });
}

const PARTS = [["cn_wait", "CN wait", "wait"], ["cn", "CN", "cn"], ["network", "network", "net"],
  ["hn_wait", "HN wait", "wait"], ["hn", "HN", "hn"]];

function estimate(e) {
  return `${significant(e.mean)} ± ${significant(e.half_width, 2)} ms`;
}

function configurationText(c) {
  if (c.gpu_part === undefined) return `${c.cn_cores} cores and a GPU`;
  return `${c.cn_cores} cores, ${c.gpu_part === "whole" ? "whole GPU" : c.gpu_part}, ` +
      (c.batching_window_us === "off" ? "no batching" : `${c.batching_window_us} µs`);
}

function verdict(parent, service) {
  const a = service.answer;
  add(parent, "p", `${a.cns} CN and ${a.hns} HN serve ${significant(service.design_queries_per_s)} ` +
      `queries/s with p99 ${estimate(a.at_design_rate.p99_ms)}, at most ` +
      `${significant(service.slo_p99_ms)} ms.`, "verdict");
  add(parent, "p", `Each CN has ${a.configuration.cn_cores} cores; each HN a ` +
      (a.configuration.gpu_part === "whole" ? "whole GPU" : `slice ${a.configuration.gpu_part}`) +
      `; ${significant(a.cns_per_hn)} CN per HN; ${significant(a.efficiency.nics)} NICs. ` +
      `${significant(a.price_per_h)} ${money}/h for the instances, ` +
      `${significant(a.nodes_price_per_h)} ${money}/h for whole nodes ` +
      `(${a.cn_nodes} and ${a.hn_nodes}).`);
  const less = (kind, result, left, least) => {
    if (!result) return;
    add(parent, "p", `One ${kind} less: p99 ${estimate(result.p99_ms)}` +
        (left < least ? " and growing: overloaded." : "."), "soft");
  };
  less("CN", a.one_cn_less, a.cns - 1, a.formulas.least_cns);
  less("HN", a.one_hn_less, a.hns - 1, a.formulas.least_hns);
  add(parent, "p", `Knee: ${significant(a.knee)} queries/s. Costs: ${service.costs_from}.`, "soft");
  if (a.configuration.slowdown_is_assumed) {
    add(parent, "p", `The time on a slice is assumed: ${significant(a.configuration.slowdown)} times ` +
        "the time on a whole GPU.", "soft");
  }
}

function loadChart(parent, service) {
  add(parent, "h3", "Latency by load");
  const line = (answer, key, name, c, dashed) => ({ name, color: color(c), dashed,
    points: answer.sweep.map((p) => ({ x: p.requests_per_s, y: p[key].mean, error: p[key].half_width })) });
  const series = [line(service.answer, "p99_ms", "p99", "p99"), line(service.answer, "p50_ms", "p50", "p50")];
  if (service.monolith) series.push(line(service.monolith, "p99_ms", "p99, monolith", "whole", true));
  lineChart(parent, { x: "queries/s", y: "ms", series, mostY: 2 * service.slo_p99_ms,
    marks: [{ y: service.slo_p99_ms, text: "objective", color: color("soft") },
      { x: service.design_queries_per_s, text: "planned", color: color("soft") },
      { x: service.answer.knee, text: "knee", color: color("p99") }] });
}

function partsChart(parent, service) {
  add(parent, "h3", "Mean latency by part, at the planned load");
  const rowOf = (name, answer) => ({ name, parts: PARTS.map(([key, text, c]) => (
    { value: answer.at_design_rate.parts_ms[key], color: color(c), text })) });
  const rows = [rowOf("disaggregated", service.answer)];
  if (service.monolith) rows.push(rowOf("monolith", service.monolith));
  barChart(parent, { rows, unit: "ms" });
  const busy = service.answer.at_design_rate.busy;
  add(parent, "p", "Busy: " + [["CN cores", busy.cn], ["HN", busy.hn], ["CN NICs", busy.cn_nic],
    ["HN NICs", busy.hn_nic]].map(([n, v]) => `${n} ${significant(100 * v, 3)} %`).join(", ") + ".", "soft");
}

function costChart(parent, service) {
  add(parent, "h3", "Price and goodput");
  const rows = [{ name: "disaggregated", parts: [{ value: service.answer.price_per_h, color: color("cn") }] }];
  if (service.monolith) {
    rows.push({ name: "monolith", parts: [{ value: service.monolith.price_per_h, color: color("whole") }] });
  }
  barChart(parent, { rows, unit: money + "/h" });
  const line = (name, answer) => {
    const e = answer.efficiency;
    return [name, significant(answer.knee), significant(e.gpus), significant(e.cores), significant(e.nics),
      significant(e.knee_per_gpu), significant(e.knee_per_core), significant(e.knee_per_nic),
      significant(e.knee_per_price)];
  };
  const lines = [line("disaggregated", service.answer)];
  if (service.monolith) lines.push(line("monolith", service.monolith));
  table(parent, ["", "knee/s", "GPUs", "cores", "NICs", "per GPU", "per core", "per NIC", `per ${money}/h`], lines);
  if (service.why_no_monolith) add(parent, "p", "No monolith: " + service.why_no_monolith, "soft");
}

function sensitivityChart(parent, service) {
  if (service.sensitivity.length === 0) return;
  add(parent, "h3", "Sensitivity of the price");
  const base = service.answer.price_per_h;
  barChart(parent, { unit: "%", zero: 100, rows: service.sensitivity.map((s) => {
    const value = s.met && base > 0 ? 100 * s.price_per_h / base : 100;
    return { name: `${s.input} × ${s.factor}`,
      label: s.met ? `${significant(value - 100, 2)} %: ${s.cns} CN, ${s.hns} HN` : "not met",
      parts: [{ value, color: value > 100 ? color("p99") : color("hn") }] };
  }) });
}

function dayChart(parent, service) {
  if (service.day.length === 0) return;
  add(parent, "h3", "A day");
  const hours = 24 / service.day.length;
  const steps = (key) => service.day.map((d, i) => ({ x: i * hours, y: d[key] }))
      .concat([{ x: 24, y: service.day[service.day.length - 1][key] }]);
  lineChart(parent, { x: "hour", y: "instances", series: [
    { name: "CN", color: color("cn"), points: steps("cns"), steps: true },
    { name: "HN", color: color("hn"), points: steps("hns"), steps: true }] });
  const sum = service.day.reduce((s, d) => s + d.price_per_h * hours, 0);
  add(parent, "p", `${significant(24 * service.answer.price_per_h)} ${money} a day for the peak's instances, ` +
      `${significant(sum)} ${money} when they follow the curve.`, "soft");
}

function searchTable(parent, service) {
  add(parent, "h3", "Configurations");
  const tried = service.search.tried;
  const best = tried.findIndex((t) => t.met && !t.why_not && t.price_per_h === service.answer.price_per_h);
  table(parent, ["", "CN", "HN", `${money}/h`, "p99, ms"], tried.map((t) => [configurationText(t),
    t.met ? t.cns : "–", t.met ? t.hns : "–", t.met ? significant(t.price_per_h) : "–",
    t.why_not ?? significant(t.p99_ms)]), best);
  add(parent, "p", `${tried.length} of ${service.search.configurations} sized by simulation` +
      (service.search.proven_cheapest ? "; none of the others can be cheaper." : "."), "soft");
}

document.title = document.getElementById("title").textContent = `Capacity plan: ${plan.name}`;
document.getElementById("nodes").textContent = plan.nodes.map((n) => `${n.nodes} × ${n.type}`).join(", ") +
    `: ${significant(plan.price_per_h)} ${money}/h`;
for (const service of plan.services) {
  const section = add(document.getElementById("services"), "section");
  add(section, "h2", service.name);
  verdict(section, service);
  const figures = add(section, "div", undefined, "figures");
  for (const draw of [loadChart, partsChart, costChart, sensitivityChart, dayChart, searchTable]) {
    const figure = add(figures, "div");
    draw(figure, service);
    if (figure.childNodes.length === 0) figure.remove();
  }
}
// For tests: nothing failed on the way here.
document.documentElement.dataset.ready = "yes";
