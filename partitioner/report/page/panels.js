// Everything beside the graph. Names from the model become text, never markup.

function element(name, text, parent, className) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  if (className) made.className = className;
  if (parent) parent.appendChild(made);
  return made;
}

function jump(text, d, parent) {
  const link = element("a", text, parent, "jump");
  link.addEventListener("click", () => graph.choose(d, true));
  return link;
}

function drawnNode(n) {
  return data.drawing.inputs.length + n;
}

// Index of what makes the value, -1 for a weight.
function drawnMaker(value) {
  return value.producer !== null ? drawnNode(nodeIndex.get(value.producer))
      : data.drawing.inputs.indexOf(value.name);
}

function typeOf(value) {
  return `${value.dtype} ${value.shape === "[]" ? "" : value.shape}`.trim();
}

const STATIONS = {
  cn: "CN", link_up: "link up", hn: "HN", link_down: "link down",
};

const COLUMNS = [
  ["plan", (row) => row.title],
  ["latency", (row) => seconds(row.plan.latency_s)],
  ["÷ optimal", (row) => partition.cost > 0
      ? (row.plan.cost / partition.cost).toFixed(3) : "–"],
  ["CN-pre", (row) => seconds(row.plan.cn_pre_s)],
  ["up", (row) => seconds(row.plan.up_s)],
  ["HN", (row) => seconds(row.plan.hn_s)],
  ["down", (row) => seconds(row.plan.down_s)],
  ["CN-post", (row) => seconds(row.plan.cn_post_s)],
  ["crossing", (row) => seconds(row.plan.cn_crossing_s +
                                row.plan.hn_crossing_s)],
  ["sent up", (row) => bytes(Math.round(row.plan.bytes_up))],
  ["sent down", (row) => bytes(Math.round(row.plan.bytes_down))],
  ["req/s per HN", (row) => rate(row.plan.requests_per_s)],
  ["bound by", (row) => STATIONS[row.plan.slowest]],
  ["NIC limit, req/s", (row) => rate(row.plan.link_requests_per_s)],
  ["lower bound", (row) => row.lowerBound === null
      ? "" : cost(row.lowerBound)],
  ["gap", (row) => row.gap === null ? ""
      : row.proven ? "0, proven" : (100 * row.gap).toPrecision(3) + " %"],
  ["", (row) => row.plan.over_budget === "" ? ""
      : "over the limit on " + row.plan.over_budget],
];

function fillPlans(onPick) {
  const table = document.getElementById("alternatives");
  const columns = COLUMNS.slice();
  // Latency has a column already.
  if (partition.objective !== "latency") {
    columns.splice(1, 0, [
      partition.objective === "cost" ? "price" : "slowest station",
      (row) => cost(row.plan.cost)]);
  }
  const head = element("tr", null, element("thead", null, table));
  for (const [title] of columns) element("th", title, head);
  const body = element("tbody", null, table);
  plans.forEach((row, index) => {
    const line = element("tr", null, body);
    if (row.plan.over_budget !== "") line.classList.add("over");
    if (row.forced && !plans[index - 1].forced) {
      line.classList.add("first-forced");
    }
    line.tabIndex = 0;
    line.dataset.row = index;
    for (const [, text] of columns) element("td", text(row), line);
    line.firstChild.title = row.title;
    if (row.plan.method === partition.chosen) {
      line.firstChild.textContent +=
          partition.written ? " (written)" : " (chosen, not written)";
    }
    line.addEventListener("click", () => onPick(index));
    line.addEventListener("keydown", (event) => {
      if (event.key === "Enter") onPick(index);
    });
  });
}

function markPlan(shown) {
  document.querySelectorAll("#alternatives tbody tr").forEach((line, index) => {
    line.classList.toggle("shown", index === shown);
  });
}

function fillCrossings() {
  const plan = plans[graph.row].plan;
  const box = document.getElementById("crossings");
  box.replaceChildren();
  for (const direction of ["up", "down"]) {
    const total = direction === "up" ? plan.bytes_up : plan.bytes_down;
    const names = plan[direction];
    element("h2", (direction === "up" ? "CN → HN: " : "HN → CN: ") +
        (names.length === 0 ? "nothing"
            : `${names.length} tensor${names.length === 1 ? "" : "s"}, ` +
              bytes(total)), box);
    if (names.length === 0) continue;
    const table = element("table", null, box);
    const errors = formErrors(plan, direction);
    names.map((name, i) => ({
      value: values.get(name),
      sent: plan["sent_" + direction][i],
      error: errors.get(name),
    })).sort((a, b) => b.sent.bytes - a.sent.bytes)
        .forEach(({ value, sent, error }) => {
          const line = element("tr", null, table, "crossing");
          const gate = graph.drawn.findIndex((item) => item.kind === "gate" &&
              item.direction === direction && item.value === value);
          jump(value.name, gate, element("td", null, line));
          const type = element("td", typeOf(value), line, "text soft");
          if (sent.form) {
            element("div", `as ${formOf(sent)}` +
                (error ? `, alone off by ${significant(error, 3)}` : ""),
                type, "form");
          }
          const size = element("td", bytes(Math.round(sent.bytes)), line,
                               "number");
          if (sent.form) {
            element("div", `of ${bytes(value.bytes)}`, size, "soft");
          }
        });
  }
}

function formOf(sent) {
  return sent.form + (sent.unique_rows ? ", equal rows once" : "");
}

// Name of a tensor → the error that it alone makes, for the plan that was
// written: those of the others were not measured.
function formErrors(plan, direction) {
  const known = data.wire !== null && plan.method === partition.chosen
      ? data.wire[direction] : [];
  return new Map(known.map((one) => [one.name, one.max_abs_error_alone]));
}

// What --verify found, if it ran.
function fillVerification() {
  const found = partition.verification;
  const section = document.getElementById("verification");
  section.hidden = !found;
  if (!found) return;
  element("h2", "Predicted and measured", section);
  const rank = found.rank_correlation;
  element("p", `Real nodes over ${found.transport || "no link"}, batch ` +
      `${found.batch}, ${found.rounds} rounds. Rank correlation of predicted ` +
      `and measured times ${rank === null ? "none" : rank.toFixed(3)}.`,
      section, "soft");
  if (found.advice) element("p", found.advice, section, "advice");
  const table = element("table", null, section);
  const head = element("tr", null, element("thead", null, table));
  for (const title of ["cut", "predicted", "measured", "quartiles",
                       "predicted ÷ measured", "bytes up", "bytes down",
                       "bytes ÷ predicted", "largest error"]) {
    element("th", title, head);
  }
  const body = element("tbody", null, table);
  for (const cut of found.cuts) {
    const line = element("tr", null, body);
    const measured = cut.measured_s;
    const worst = (cut.errors ?? [])
        .reduce((most, one) => Math.max(most, one.max_abs_error), 0);
    for (const text of [
      cut.name, seconds(cut.predicted_s), seconds(measured.median),
      `${seconds(measured.q25)} to ${seconds(measured.q75)}`,
      cut.predicted_over_measured.toFixed(2), bytes(Math.round(cut.bytes_up)),
      bytes(Math.round(cut.bytes_down)),
      cut.bytes_over_predicted === null ? "–"
          : cut.bytes_over_predicted.toFixed(4),
      worst === 0 ? "same bits" : significant(worst, 3),
    ]) {
      element("td", text, line);
    }
  }
}

function fillAssumptions() {
  const box = document.getElementById("assumptions");
  const list = (title, names) => {
    if (names.length === 0) return;
    element("h2", title, box);
    element("p", names.join(", "), box, "soft");
  };
  list("Operators of unknown work, priced as one launch",
       partition.unknown_operators);
  list("Values of unknown size, priced as the largest known value",
       partition.unknown_sizes);
}

function line(table, title, text) {
  const made = element("tr", null, table);
  element("td", title, made);
  return element("td", text, made);
}

function listValues(table, title, names) {
  names.forEach((name, i) => {
    const value = values.get(name);
    const cell = line(table, i === 0 ? title : "");
    const maker = drawnMaker(value);
    if (maker >= 0) jump(name, maker, cell);
    else element("span", name, cell);
    element("span", ` ${typeOf(value)}, ${bytes(value.bytes)}` +
        (value.is_weight ? ", weight" : ""), cell, "soft");
  });
}

function listReaders(table, value) {
  value.readers.forEach((n, i) => {
    const cell = line(table, i === 0 ? "read by" : "");
    jump(partition.nodes[n].name, drawnNode(n), cell);
    element("span", " " + STAGES[plans[graph.row].plan.stages[n]], cell, "soft");
  });
  if (value.is_output) line(table, "", "a result of the model");
}

function fillDetails(item) {
  const box = document.getElementById("details");
  box.replaceChildren();
  if (item === null) {
    element("p", "Click an operator, an input or a red gate where a tensor " +
        "crosses. Drag to move, turn the wheel to zoom; a row of the table " +
        "shows that plan.", box, "soft");
    return;
  }
  element("h2", item.node ? item.node.name : item.value.name, box);
  const table = element("table", null, box);
  if (item.node) {
    const node = item.node;
    line(table, "operator", node.op);
    line(table, "class", node.class);
    line(table, "stage", STAGES[item.stage] + ", may be " +
        node.allowed.map((stage) => STAGES[stage]).join(", "));
    line(table, "on the CN", seconds(node.cn_s));
    line(table, "on the HN", node.allowed.includes(1)
        ? seconds(node.hn_s) : "may not run there");
    listValues(table, "reads", node.inputs);
    listValues(table, "makes", node.outputs);
    for (const name of node.outputs) listReaders(table, values.get(name));
    return;
  }
  const value = item.value;
  line(table, "tensor", typeOf(value));
  line(table, "bytes", bytes(value.bytes));
  if (item.kind === "gate") {
    const plan = plans[graph.row].plan;
    const sent = plan["sent_" + item.direction][
        plan[item.direction].indexOf(value.name)];
    if (sent.form) {
      line(table, "sent", `${bytes(Math.round(sent.bytes))} as ${formOf(sent)}`);
      const error = formErrors(plan, item.direction).get(value.name);
      if (error) line(table, "alone off by", significant(error, 3));
    }
    line(table, "crosses", item.direction === "up" ? "CN → HN" : "HN → CN");
    line(table, "on the link",
         seconds(sent.bytes / partition.conditions.link.bytes_per_s));
    const without = plans.findIndex((row) => row.forced && !row.plan.crosses &&
        row.plan.value === value.name && row.plan.direction === item.direction);
    if (without >= 0) {
      line(table, "without", "best plan that does not send it: " +
          cost(plans[without].plan.cost));
    }
  }
  const maker = line(table, "made by");
  if (value.producer === null) maker.textContent = "the request";
  else jump(value.producer, drawnMaker(value), maker);
  listReaders(table, value);
}

// What the chosen plan costs more than the plan of least cost.
function chosenVerdict() {
  if (partition.chosen === "optimal") return "";
  const row = plans.find((row) => row.plan.method === partition.chosen);
  if (!row || partition.cost <= 0) return "";
  return ` The chosen plan, ${partition.chosen}, costs ${cost(row.plan.cost)}: ` +
      `${(row.plan.cost / partition.cost).toPrecision(3)} times that.`;
}

function fillHeader() {
  const { name, version, digest } = data.model;
  document.title = `${name} ${version}: split report`;
  const title = document.getElementById("title");
  title.textContent = `${name}, version ${version}`;
  title.title = "model " + digest;
  const what = { latency: "latency", throughput: "time of the slowest station",
                 cost: "price" }[partition.objective];
  document.getElementById("verdict").textContent =
      `Least ${what}: ${cost(partition.cost)}; ` +
      (partition.proven
          ? `proven optimal for these costs with ${partition.minimum_cuts} ` +
            `minimum cut${partition.minimum_cuts === 1 ? "" : "s"}.`
          : `no plan costs less than ${cost(partition.lower_bound)}, so this ` +
            `plan is at most ${(100 * partition.gap).toPrecision(3)} % above ` +
            `the optimum (stopped after ${partition.minimum_cuts} minimum cuts).`) +
      chosenVerdict();
  const given = partition.conditions;
  const all = Object.entries(given.sizes)
      .map(([symbol, size]) => `${symbol} = ${size}`);
  const sizes = all.slice(0, 4).join(", ") + (all.length > 4 ? ", …" : "");
  const conditions = document.getElementById("conditions");
  conditions.title = all.join(", ");
  conditions.textContent =
      `batch ${given.batch}${sizes ? ` (${sizes})` : ""}; ` +
      `CN ${given.cn.name}, HN ${given.hn.name}; ` +
      `link ${significant(given.link.bytes_per_s * 8 / 1e9)} Gbit/s + ` +
      `${significant(given.link.latency_s * 1e6)} µs one way; ` +
      `${partition.nodes.length} operators. Estimates, not measurements` +
      (partition.verification ? ", except the last table." : ".");
  document.getElementById("rows").textContent =
      `Rows: ${partition.rows}; on the HN: ${partition.hn_rows}.`;
  const wire = document.getElementById("wire");
  wire.hidden = data.wire === null;
  if (data.wire === null) return;
  wire.textContent = "On the wire: " +
      `${bytes(Math.round(data.wire.message_bytes_up))} up and ` +
      `${bytes(Math.round(data.wire.message_bytes_down))} down, ` +
      `${bytes(Math.round(data.wire.plain_message_bytes_up))} and ` +
      `${bytes(Math.round(data.wire.plain_message_bytes_down))} with tensors ` +
      "as they are; " + data.wire.outputs.map((one) =>
          `${one.output} off by up to ${one.max_abs_error === null
              ? "infinity" : significant(one.max_abs_error, 3)}`).join(", ") +
      ` (${data.wire.requests} requests: ${data.wire.sample})` +
      (data.wire.error_bound === null ? ""
          : `; bound ${data.wire.error_bound}`) + ".";
}
