// Charts as SVG: lines with error bars, and horizontal bars.

const SVG = "http://www.w3.org/2000/svg";

function svgElement(name, attributes, parent, text) {
  const element = document.createElementNS(SVG, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
}

function significant(number, digits = 4) {
  if (number === null || number === undefined) return "–";
  return Number(number.toPrecision(digits)).toLocaleString("en-US");
}

// About `count` round numbers from 0 to `most`.
function ticks(most, count = 5) {
  if (!(most > 0)) return [0];
  const raw = most / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const result = [];
  for (let at = 0; at <= most * 1.0001; at += step) result.push(at);
  return result;
}

// series: [{name, color, points: [{x, y, error}], dashed, steps, plain}]; plain: without dots
// marks: [{x or y, text, color}]: vertical and horizontal lines.
function lineChart(parent, { x, y, series, marks = [], mostY }) {
  const W = 560, H = 300, left = 58, right = 14, top = 14, bottom = 40;
  const svg = svgElement("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" }, parent);
  const all = series.flatMap((one) => one.points);
  const mostX = Math.max(...all.map((p) => p.x), ...marks.map((m) => m.x ?? 0)) || 1;
  const topY = mostY ?? (Math.max(...all.map((p) => p.y + (p.error ?? 0))) || 1);
  const px = (v) => left + v / mostX * (W - left - right);
  const py = (v) => H - bottom - Math.min(v / topY, 1) * (H - top - bottom);
  for (const v of ticks(topY)) {
    svgElement("line", { class: "grid", x1: left, x2: W - right, y1: py(v), y2: py(v) }, svg);
    svgElement("text", { x: left - 6, y: py(v) + 4, "text-anchor": "end" }, svg, significant(v));
  }
  for (const v of ticks(mostX)) {
    svgElement("line", { class: "axis", x1: px(v), x2: px(v), y1: H - bottom, y2: H - bottom + 4 }, svg);
    svgElement("text", { x: px(v), y: H - bottom + 16, "text-anchor": "middle" }, svg, significant(v));
  }
  svgElement("line", { class: "axis", x1: left, x2: W - right, y1: H - bottom, y2: H - bottom }, svg);
  svgElement("text", { x: (left + W - right) / 2, y: H - 6, "text-anchor": "middle" }, svg, x);
  svgElement("text", { x: 4, y: 10 }, svg, y);
  marks.forEach((mark, m) => {
    const vertical = mark.x !== undefined;
    svgElement("line", { stroke: mark.color, "stroke-dasharray": "5 4",
      x1: vertical ? px(mark.x) : left, x2: vertical ? px(mark.x) : W - right,
      y1: vertical ? top : py(mark.y), y2: vertical ? H - bottom : py(mark.y) }, svg);
    svgElement("text", { x: vertical ? px(mark.x) - 4 : W - right,
      y: vertical ? H - bottom - 6 - 14 * m : py(mark.y) - 4,
      "text-anchor": "end" }, svg, mark.text);
  });
  series.forEach((one, s) => {
    const points = one.points.filter((p) => p.y <= topY * 1.5);
    let path = "";
    points.forEach((p, i) => {
      if (i > 0 && one.steps) path += `H${px(p.x)}`;
      path += `${i === 0 ? "M" : "L"}${px(p.x)} ${py(p.y)}`;
    });
    svgElement("path", { class: "line", d: path, stroke: one.color,
      "stroke-dasharray": one.dashed ? "6 4" : "none" }, svg);
    for (const p of points) {
      if (p.error) {
        svgElement("line", { stroke: one.color, x1: px(p.x), x2: px(p.x),
          y1: py(Math.max(0, p.y - p.error)), y2: py(p.y + p.error) }, svg);
      }
      if (one.steps || one.plain) continue;
      const dot = svgElement("circle", { cx: px(p.x), cy: py(p.y), r: 2.6, fill: one.color }, svg);
      svgElement("title", {}, dot, `${one.name}: ${significant(p.x)}: ${significant(p.y)}` +
          (p.error ? ` ± ${significant(p.error, 2)}` : ""));
    }
    svgElement("rect", { x: left + 10, y: top + 14 + 15 * s, width: 14, height: 3, fill: one.color }, svg);
    svgElement("text", { x: left + 30, y: top + 19 + 15 * s }, svg, one.name);
  });
}

// rows: [{name, label, parts: [{value, color, text}]}]. With `zero` other than
// 0, bars begin there and go either way.
function barChart(parent, { rows, unit, zero = 0 }) {
  const W = 560, row = 24, left = 150, right = zero === 0 ? 90 : 150;
  const H = rows.length * row + 10;
  const svg = svgElement("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" }, parent);
  const sums = rows.map((r) => r.parts.reduce((sum, p) => sum + p.value, 0));
  const span = Math.max(...sums.map((s) => Math.abs(s - zero)), 1e-12);
  const origin = zero === 0 ? left : (left + W - right) / 2;
  const scale = (zero === 0 ? W - left - right : (W - left - right) / 2) / span;
  rows.forEach((r, i) => {
    const y = 6 + i * row;
    svgElement("text", { x: left - 8, y: y + 13, "text-anchor": "end" }, svg, r.name);
    let at = origin;
    r.parts.forEach((p) => {
      const width = (zero === 0 ? p.value : p.value - zero) * scale;
      const bar = svgElement("rect", { x: Math.min(at, at + width), y,
        width: Math.abs(width), height: row - 7, fill: p.color }, svg);
      svgElement("title", {}, bar, `${p.text ?? ""} ${significant(p.value)} ${unit}`);
      at += width;
    });
    svgElement("text", { x: zero === 0 ? at + 5 : W - right + 8, y: y + 13 }, svg,
      r.label ?? `${significant(sums[i])} ${unit}`);
  });
}
