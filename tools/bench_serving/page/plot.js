// Line plots in SVG. A scale maps a value to 0…1; a plot maps that to pixels.

const WIDTH = 1040;
const HEIGHT = 320;
const MARGIN = { left: 64, right: 14, top: 10, bottom: 34 };

function element(name, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, value);
  }
  if (text !== null) made.textContent = text;
  return made;
}

function significant(number, digits = 4) {
  return String(Number(Number(number).toPrecision(digits)));
}

// Ticks at 1, 2, 5 times powers of ten.
function logScale(values) {
  const positive = values.filter((v) => v > 0);
  const low = Math.log10(Math.min(...positive) * 0.9);
  const high = Math.log10(Math.max(...positive) * 1.1);
  const ticks = [];
  const steps = high - low > 3 ? [1] : [1, 2, 5];
  for (let power = Math.floor(low); power <= high; ++power) {
    for (const step of steps) {
      const tick = step * 10 ** power;
      if (Math.log10(tick) >= low && Math.log10(tick) <= high) ticks.push(tick);
    }
  }
  return {
    ticks,
    at: (v) => (Math.log10(Math.max(v, 10 ** low)) - low) / (high - low),
  };
}

function linearScale(values) {
  const high = Math.max(...values, 1e-9) * 1.05;
  const rough = high / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((f) => f * power >= rough);
  const ticks = [];
  for (let i = 0; i * step <= high; ++i) ticks.push(i * step);
  return { ticks, at: (v) => v / high };
}

// 0.5, 0.9, 0.99, … evenly spaced; 1 itself lies at the right edge.
function percentileScale(fractions) {
  const rest = Math.min(...fractions.filter((f) => f < 1).map((f) => 1 - f), 0.1);
  const span = -Math.log10(rest) + 0.3;
  const ticks = [0, 0.5];
  for (let nines = 1; 10 ** -nines >= rest; ++nines) ticks.push(1 - 10 ** -nines);
  return { ticks, at: (f) => (f >= 1 ? 1 : -Math.log10(1 - f) / span) };
}

// An empty plot with its grid. `tip(fraction of the width)` → text or null.
function plot(svg, x, y, xLabel, yLabel, tip) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  const width = WIDTH - MARGIN.left - MARGIN.right;
  const height = HEIGHT - MARGIN.top - MARGIN.bottom;
  const px = (v) => MARGIN.left + width * x.at(v);
  const py = (v) => MARGIN.top + height * (1 - y.at(v));
  for (const tick of y.ticks) {
    svg.append(
      element("line", {
        class: "grid", x1: MARGIN.left, x2: WIDTH - MARGIN.right,
        y1: py(tick), y2: py(tick),
      }),
      element("text", {
        x: MARGIN.left - 6, y: py(tick) + 4, "text-anchor": "end",
      }, significant(tick)),
    );
  }
  for (const tick of x.ticks) {
    svg.append(element("text", {
      x: px(tick), y: HEIGHT - MARGIN.bottom + 16, "text-anchor": "middle",
    }, x.label ? x.label(tick) : significant(tick, 6)));
  }
  svg.append(
    element("text", {
      x: WIDTH - MARGIN.right, y: HEIGHT - 2, "text-anchor": "end",
    }, xLabel),
    element("text", { x: 2, y: HEIGHT - 2 }, yLabel),
  );
  const box = document.getElementById("tip");
  svg.addEventListener("mousemove", (event) => {
    const bounds = svg.getBoundingClientRect();
    const inside = ((event.clientX - bounds.x) / bounds.width) * WIDTH;
    const text = tip((inside - MARGIN.left) / width);
    box.hidden = text === null;
    box.textContent = text ?? "";
    box.style.left = `${Math.min(event.clientX + 14, innerWidth - 220)}px`;
    box.style.top = `${event.clientY + 14}px`;
  });
  svg.addEventListener("mouseleave", () => { box.hidden = true; });
  return { svg, px, py };
}

// A line through [x, y] points; a null y interrupts it.
function line(chart, points, className) {
  let path = "";
  let pen = "M";
  for (const [x, y] of points) {
    if (y === null) {
      pen = "M";
      continue;
    }
    path += `${pen}${chart.px(x).toFixed(1)},${chart.py(y).toFixed(1)}`;
    pen = "L";
  }
  chart.svg.append(element("path", { class: className, d: path }));
}
