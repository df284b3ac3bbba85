// Puts it together. The page can be opened at a plan, a node and a search:
// #plan=2&node=NAME&search=TEXT

function showPlan(row) {
  graph.show(row);
  markPlan(row);
  fillCrossings();
  find(false);
}

const search = document.getElementById("search");
let hits = [];
let hit = -1;  // the one that was jumped to

function find(jumpThere) {
  hits = graph.search(search.value);
  hit = -1;
  if (jumpThere && hits.length > 0) step(1);
  else tellHits();
}

function step(by) {
  if (hits.length === 0) return;
  hit = hit < 0 && by < 0 ? hits.length - 1
      : (hit + by + hits.length) % hits.length;
  graph.choose(hits[hit], true);
  tellHits();
}

function tellHits() {
  document.getElementById("hits").textContent =
      search.value.trim() === "" ? ""
      : hit < 0 ? `${hits.length} found` : `${hit + 1} of ${hits.length}`;
}

search.addEventListener("input", () => find(false));
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
  if (event.key === "Escape") {
    search.value = "";
    find(false);
    svg.focus();
  }
});

const KEYS = {
  "+": () => graph.zoom(1.4),
  "=": () => graph.zoom(1.4),
  "-": () => graph.zoom(1 / 1.4),
  "0": () => graph.fit(),
  "/": () => search.focus(),
  "Escape": () => graph.choose(-1),
};
document.addEventListener("keydown", (event) => {
  if (event.target === search || event.ctrlKey || event.metaKey ||
      event.altKey || !KEYS[event.key]) {
    return;
  }
  event.preventDefault();
  KEYS[event.key]();
});
document.getElementById("zoom-in").addEventListener("click", KEYS["+"]);
document.getElementById("zoom-out").addEventListener("click", KEYS["-"]);
document.getElementById("fit").addEventListener("click", KEYS["0"]);

graph.onChoose = fillDetails;
fillHeader();
fillPlans(showPlan);
fillAssumptions();
fillVerification();
fillDetails(null);
const chosen = plans.findIndex((row) => row.plan.method === partition.chosen);
const asked = new URLSearchParams(location.hash.slice(1));
const plan = Number(asked.get("plan") ?? Math.max(chosen, 0));
search.value = asked.get("search") ?? "";
showPlan(plans[plan] ? plan : 0);
if (nodeIndex.has(asked.get("node"))) {
  graph.choose(drawnNode(nodeIndex.get(asked.get("node"))), true);
}
// For tests: nothing failed on the way here.
document.documentElement.dataset.ready = "yes";
