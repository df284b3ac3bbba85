// The drawn graph of one plan: inputs, operators, gates where values cross.
// Places come with the page (partitioner/report/graph_layout.h); here they become SVG.

const CELL_W = 150, CELL_H = 26, NODE_W = 108, NODE_H = 19;
const READABLE = 0.42;  // scale below which letters are left out
const svg = document.getElementById("drawing");
const view = document.getElementById("view");

function svgElement(name, attributes, parent) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (parent) parent.appendChild(element);
  return element;
}

// The order of partitioner/report/split_html.cc: inputs, operators, gates up, gates down.
function drawnOf(plan) {
  const drawn = data.drawing.inputs.map((name) => ({
    kind: "input", value: values.get(name), label: name, title: name, stage: 0,
  }));
  partition.nodes.forEach((node, n) => drawn.push({
    kind: "node", node, label: shortName(node.op),
    title: node.name + "\n" + node.op, stage: plan.stages[n],
    isOutput: node.outputs.some((name) => values.get(name).is_output),
  }));
  for (const direction of ["up", "down"]) {
    plan[direction].forEach((name, i) => {
      const value = values.get(name);
      const sent = Math.round(plan["sent_" + direction][i].bytes);
      drawn.push({
        kind: "gate", value, direction, label: bytes(sent),
        title: name + "\n" + bytes(sent) + " " + direction,
      });
    });
  }
  return drawn;
}

// [from, to, crosses] by indices of `drawn`.
function edgesOf(plan, drawn) {
  const first = data.drawing.inputs.length;
  const maker = new Map(data.drawing.inputs.map((name, i) => [name, i]));
  partition.nodes.forEach((node, n) => {
    for (const name of node.outputs) maker.set(name, first + n);
  });
  const gates = { up: new Map(), down: new Map() };
  const edges = [];
  drawn.forEach((item, d) => {
    if (item.kind !== "gate") return;
    gates[item.direction].set(item.value.name, d);
    edges.push([maker.get(item.value.name), d, true]);
  });
  partition.nodes.forEach((node, n) => {
    const stage = plan.stages[n];
    for (const name of new Set(node.inputs)) {
      if (!maker.has(name)) continue;  // a weight
      const from = maker.get(name);
      const made = drawn[from].stage;
      const gate = stage === 1 && made === 0 ? gates.up.get(name)
          : stage === 2 && made === 1 ? gates.down.get(name) : undefined;
      edges.push([gate === undefined ? from : gate, first + n,
                  gate !== undefined]);
    }
  });
  return edges;
}

const graph = {
  row: -1,       // which of `plans` is shown
  drawn: [], edges: [], elements: [],
  chosen: -1,
  size: { w: 1, h: 1 },
  at: { x: 0, y: 0, k: 1 },
  onChoose: () => {},

  show(row) {
    const chosen = this.chosen >= 0 ? this.drawn[this.chosen] : null;
    this.row = row;
    const plan = plans[row].plan;
    const places = data.drawing.places[data.drawing.of_plan[row]];
    this.drawn = drawnOf(plan);
    this.edges = edgesOf(plan, this.drawn);
    this.drawn.forEach((item, d) => {
      item.x = places[2 * d] * CELL_W;
      item.y = places[2 * d + 1] / 10 * CELL_H;
    });
    this.size = {
      w: Math.max(...this.drawn.map((item) => item.x), 0) + NODE_W,
      h: Math.max(...this.drawn.map((item) => item.y), 0) + NODE_H,
    };
    this.draw();
    this.overview();
    this.chosen = -1;
    if (chosen !== null) {
      this.choose(this.drawn.findIndex((item) => item.kind === chosen.kind &&
          item.node === chosen.node && item.value === chosen.value &&
          item.direction === chosen.direction));
    }
  },

  curve(from, to) {
    const x1 = from.x + NODE_W, y1 = from.y + NODE_H / 2;
    const x2 = to.x, y2 = to.y + NODE_H / 2;
    const bend = Math.max(24, (x2 - x1) / 2);
    return `M${x1} ${y1.toFixed(1)}C${x1 + bend} ${y1.toFixed(1)} ` +
        `${x2 - bend} ${y2.toFixed(1)} ${x2} ${y2.toFixed(1)}`;
  },

  paths(edges) {
    return edges.map(([from, to]) =>
        this.curve(this.drawn[from], this.drawn[to])).join("");
  },

  draw() {
    const fresh = document.createDocumentFragment();
    [0, 1, 2].forEach((stage) => {
      const members = this.drawn.filter((item) => item.stage === stage);
      if (members.length === 0) return;
      const left = Math.min(...members.map((item) => item.x)) - 20;
      const right = Math.max(...members.map((item) => item.x)) + NODE_W + 20;
      svgElement("rect", { class: `band s${stage}`, x: left, y: -60,
        width: right - left, height: this.size.h + 80 }, fresh);
      svgElement("text", { class: "band-name", x: left + 8, y: -24 }, fresh)
          .textContent = STAGES[stage];
    });
    svgElement("path", { class: "edges",
      d: this.paths(this.edges.filter((edge) => !edge[2] &&
          this.drawn[edge[1]].kind !== "gate")) }, fresh);
    svgElement("path", { class: "edges crossing",
      d: this.paths(this.edges.filter((edge) => edge[2])) }, fresh);
    this.overlay = svgElement("path", { class: "edges chosen", d: "" }, fresh);
    this.elements = this.drawn.map((item, d) => {
      const kind = item.kind === "node" ? "" : " " + item.kind;
      const element = svgElement("g", {
        class: "node" + (item.kind === "gate" ? "" : ` s${item.stage}`) + kind +
            (item.isOutput ? " output" : ""),
        transform: `translate(${item.x} ${item.y.toFixed(1)})`,
        "data-d": d }, fresh);
      svgElement("title", {}, element).textContent = item.title;
      svgElement("rect", { width: NODE_W, height: NODE_H }, element);
      const label = item.label.length > 17
          ? item.label.slice(0, 16) + "…" : item.label;
      svgElement("text", { x: 6, y: 13.5 }, element).textContent = label;
      return element;
    });
    view.replaceChildren(fresh);
  },

  choose(d, center = false) {
    if (this.chosen >= 0) {
      this.elements[this.chosen].classList.remove("chosen");
    }
    this.chosen = d;
    if (d >= 0) {
      this.elements[d].classList.add("chosen");
      this.overlay.setAttribute("d", this.paths(this.edges.filter(
          (edge) => edge[0] === d || edge[1] === d)));
      if (center) this.center(d);
    } else {
      this.overlay.setAttribute("d", "");
    }
    this.onChoose(d >= 0 ? this.drawn[d] : null);
  },

  apply() {
    const { x, y, k } = this.at;
    view.setAttribute("transform", `translate(${x} ${y}) scale(${k})`);
    svg.classList.toggle("far", k < READABLE);
  },

  fit() {
    const { width, height } = svg.getBoundingClientRect();
    const w = this.size.w + 60, h = this.size.h + 110;
    const k = Math.min(width / w, height / h, 1.5);
    this.at = { k, x: (width - this.size.w * k) / 2,
                y: (height - (this.size.h - 60) * k) / 2 };
    this.apply();
  },

  // The whole graph, or of one that is far longer than high the crossing.
  overview() {
    this.fit();
    const { width, height } = svg.getBoundingClientRect();
    const gates = this.drawn.filter((item) => item.kind === "gate");
    const k = Math.min(height / (this.size.h + 110), 1);
    if (gates.length === 0 || k < 5 * this.at.k) return;
    this.at = { k, x: width * 0.6 - gates[0].x * k,
                y: (height - (this.size.h - 60) * k) / 2 };
    this.apply();
  },

  zoom(factor, x, y) {
    const { width, height } = svg.getBoundingClientRect();
    x = x === undefined ? width / 2 : x;
    y = y === undefined ? height / 2 : y;
    const k = Math.min(8, Math.max(0.01, this.at.k * factor));
    this.at.x = x - (x - this.at.x) * k / this.at.k;
    this.at.y = y - (y - this.at.y) * k / this.at.k;
    this.at.k = k;
    this.apply();
  },

  center(d) {
    const { width, height } = svg.getBoundingClientRect();
    this.at.k = Math.max(this.at.k, 0.8);
    this.at.x = width / 2 - (this.drawn[d].x + NODE_W / 2) * this.at.k;
    this.at.y = height / 2 - (this.drawn[d].y + NODE_H / 2) * this.at.k;
    this.apply();
  },

  // Marks what has `text` in its name, operator or tensors; returns indices.
  search(text) {
    const wanted = text.trim().toLowerCase();
    const has = (name) => name.toLowerCase().includes(wanted);
    const hits = [];
    this.drawn.forEach((item, d) => {
      const hit = wanted !== "" && (item.kind === "node"
          ? has(item.node.name) || has(item.node.op) ||
            item.node.outputs.some(has)
          : has(item.value.name));
      this.elements[d].classList.toggle("hit", hit);
      if (hit) hits.push(d);
    });
    svg.classList.toggle("searching", wanted !== "");
    return hits;
  },
};

svg.addEventListener("wheel", (event) => {
  event.preventDefault();
  const box = svg.getBoundingClientRect();
  const lines = event.deltaMode === 1 ? 30 : 1;
  graph.zoom(Math.exp(-event.deltaY * lines * 0.0015),
             event.clientX - box.left, event.clientY - box.top);
}, { passive: false });

let grip = null;  // where the drawing is held, until the button is released
svg.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  const under = event.target.closest(".node");
  grip = { x: event.clientX, y: event.clientY, moved: false,
           d: under ? Number(under.dataset.d) : -1 };
  svg.setPointerCapture(event.pointerId);
});
svg.addEventListener("pointermove", (event) => {
  if (grip === null) return;
  const dx = event.clientX - grip.x, dy = event.clientY - grip.y;
  if (!grip.moved && Math.hypot(dx, dy) < 4) return;
  Object.assign(grip, { x: event.clientX, y: event.clientY, moved: true });
  svg.classList.add("dragged");
  graph.at.x += dx;
  graph.at.y += dy;
  graph.apply();
});
for (const type of ["pointerup", "pointercancel"]) {
  svg.addEventListener(type, () => {
    if (grip !== null && !grip.moved && type === "pointerup") {
      graph.choose(grip.d);
    }
    grip = null;
    svg.classList.remove("dragged");
  });
}
