// What the page knows: the JSON, and who makes and reads what.

const data = JSON.parse(document.getElementById("data").textContent);
const partition = data.partition;
const STAGES = ["CN-pre", "HN", "CN-post"];

const values = new Map();  // name → value, with readers (indices of nodes)
for (const value of partition.values) {
  values.set(value.name, Object.assign(value, { readers: [] }));
}
const nodeIndex = new Map();
partition.nodes.forEach((node, n) => {
  nodeIndex.set(node.name, n);
  for (const name of new Set(node.inputs)) values.get(name).readers.push(n);
});

// Rows of the table of plans, in the order of drawing.of_plan.
const plans = partition.alternatives.map((plan) => ({
  title: plan.method,
  plan,
  forced: false,
  lowerBound: plan.method === "optimal" ? partition.lower_bound : null,
  gap: plan.method === "optimal" ? partition.gap : null,
  proven: plan.method === "optimal" && partition.proven,
})).concat(partition.forced_cuts.map((plan) => ({
  title: plan.value +
      (plan.crosses ? " crosses " : " does not cross ") + plan.direction +
      (plan.alike > 1 ? ` (one of ${plan.alike} alike)` : ""),
  plan,
  forced: true,
  lowerBound: plan.lower_bound,
  gap: plan.gap,
  proven: plan.proven,
})));

function significant(number, digits = 4) {
  return String(Number(number.toPrecision(digits)));
}

function seconds(s) {
  if (s === 0) return "0";
  if (s < 1e-3) return significant(s * 1e6) + " µs";
  if (s < 1) return significant(s * 1e3) + " ms";
  return significant(s) + " s";
}

function bytes(b) {
  if (b < 1024) return b + " B";
  if (b < 2 ** 20) return significant(b / 2 ** 10) + " KiB";
  if (b < 2 ** 30) return significant(b / 2 ** 20) + " MiB";
  return significant(b / 2 ** 30) + " GiB";
}

function cost(amount) {
  return partition.objective === "cost" ? significant(amount) : seconds(amount);
}

function rate(perSecond) {
  return perSecond === null ? "–"
      : perSecond >= 1e4 ? Math.round(perSecond).toLocaleString("en-US")
      : significant(perSecond);
}

// "aten.embedding_bag.padding_idx" → "embedding_bag"
function shortName(op) {
  const parts = op.split(".");
  return parts.length > 1 ? parts[1] : op;
}
