// A page of tables and line charts, from the JSON of figures.cc.

const figures = JSON.parse(document.getElementById("data").textContent);
const PALETTE = ["#1a5fb4", "#b3261e", "#5a9e51", "#c08a3e", "#7d5a9e", "#1d2329", "#66a3b5"];

function add(parent, name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  parent.appendChild(element);
  return element;
}

document.title = document.getElementById("title").textContent = figures.title;
for (const note of figures.notes) add(document.getElementById("notes"), "p", note, "soft");
const main = add(document.getElementById("figures"), "div", undefined, "figures");
for (const table of figures.tables) {
  const figure = add(main, "div");
  add(figure, "h3", table.title);
  const element = add(figure, "table");
  const head = add(element, "tr");
  for (const cell of table.head) add(head, "th", cell);
  for (const row of table.rows) {
    const line = add(element, "tr");
    for (const cell of row) add(line, "td", cell);
  }
}
for (const chart of figures.charts) {
  const figure = add(main, "div");
  add(figure, "h3", chart.title);
  lineChart(figure, { x: chart.x, y: chart.y, series: chart.lines.map((line, i) => ({
    name: line.name, color: PALETTE[i % PALETTE.length], steps: line.steps, plain: true,
    points: line.points.map(([x, y]) => ({ x, y })) })) });
}
// For tests: nothing failed on the way here.
document.documentElement.dataset.ready = "yes";
