// Draws /status again and again. Rates are between two answers.

const PERIOD_MS = 2000;
const byId = (id) => document.getElementById(id);
let last = null;

function draw(table, head, rows) {
  table.replaceChildren();
  const add = (cells, kind) => {
    const row = table.insertRow();
    for (const text of cells) {
      const cell = document.createElement(kind);
      cell.textContent = text;
      if (text === "no") cell.className = "bad";
      row.append(cell);
    }
  };
  add(head, "th");
  for (const cells of rows) add(cells, "td");
}

const yes = (value) => (value ? "yes" : "no");

function duration(seconds) {
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

function failures(requests) {
  return Object.entries(requests)
    .filter(([key]) => key !== "succeeded")
    .reduce((sum, [, count]) => sum + count, 0);
}

// As `refract status` finds them.
function problems(status) {
  const found = [];
  if (!status.ready) found.push(`not ready: ${status.why ?? ""}`);
  for (const model of status.models) {
    if (!model.ready) {
      found.push(`model ${model.name} version ${model.version}: ${model.why ?? "not ready"}`);
    }
  }
  for (const node of status.gpu_nodes ?? []) {
    if (node.leaving) continue;
    if (!node.connected) {
      found.push(`GPU node ${node.address}: not connected` +
                 (node.why ? `: ${node.why}` : ""));
      continue;
    }
    for (const model of node.models) {
      if (model.ready) continue;
      found.push(`GPU node ${node.address}: model ${model.name} version ${model.version}: ${model.why}`);
    }
  }
  return found;
}

function show(status, at) {
  const role = status.role === "cpu_node" ? "CPU node" : "GPU node";
  document.title = `${role} ${location.host}`;
  byId("title").textContent = `${role} ${location.host}`;
  byId("state").textContent =
      `${status.state}, up for ${duration(status.uptime_seconds)}, ` +
      `Refract ${status.version}` + (status.device ? `, on ${status.device}` : "");
  const wrong = problems(status);
  byId("wrong").replaceChildren(...(wrong.length ? wrong : ["nothing"]).map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    item.className = wrong.length ? "bad" : "good";
    return item;
  }));
  const seconds = last ? (at - last.at) / 1000 : 0;
  const rate = (count) => (last && seconds > 0
    ? ((count(status) - count(last.status)) / seconds).toFixed(1) : "…");
  draw(byId("load"), ["succeeded/s", "failed/s", "under way", "request memory"], [[
    rate((s) => s.requests.succeeded), rate((s) => failures(s.requests)),
    status.requests_in_flight ?? status.requests_pending,
    `${(status.request_memory_bytes / 2 ** 20).toFixed(1)} of ` +
        `${(status.request_memory_limit_bytes / 2 ** 20).toFixed(0)} MiB`,
  ]]);
  draw(byId("models"), ["model", "version", "ready", "succeeded", ""],
       status.models.map((model) => [
         model.name, model.version, yes(model.ready), model.succeeded ?? 0,
         model.why ?? "",
       ]));
  byId("nodes").hidden = status.gpu_nodes === undefined;
  draw(byId("links"), ["GPU node", "connected", "path", "under way", "sent", "losses"],
       (status.gpu_nodes ?? []).map((node) => [
         node.address + (node.leaving ? " (leaving)" : ""), yes(node.connected),
         node.path, node.in_flight, node.requests_sent, node.losses,
       ]));
  byId("when").textContent = `as of ${new Date(at).toLocaleTimeString()}`;
  last = { status, at };
}

async function refresh() {
  try {
    const answer = await fetch("/status", { cache: "no-store" });
    show(await answer.json(), Date.now());
  } catch (error) {
    byId("state").textContent = "no answer";
    byId("state").className = "bad";
    setTimeout(refresh, PERIOD_MS);
    return;
  }
  byId("state").className = "";
  setTimeout(refresh, PERIOD_MS);
}

refresh();
