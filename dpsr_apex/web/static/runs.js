// The table of all runs, live; several can be selected to compare their curves.

import { ago, counted, h, listen, number, pageOf, percent, replace, short, svg } from "./dom.js";
import { go } from "./app.js";

const HEADS = [["Run", "name"], ["Environment", "wide"], ["Method", "wide"], ["Seed", "figure.wide"], ["Progress", "progress"], ["Last score", "figure"], ["Scores", "wide"], ["Changed", "figure.wide"]];
const ORDER = { running: 0, failed: 1, damaged: 2, killed: 3, stopped: 4, finished: 5 };

export function showRuns(page, { session }) {
  const lines = new Map(), chosen = new Set(), rows = new Map();
  let wanted = "", complete = false;
  const body = h("tbody", {}), count = h("span.muted", {}), waiting = h("p.muted", {}, "Reading the runs…");
  const compare = h("button.primary", { disabled: true, title: "Select runs in the table to overlay their curves", onclick: () => go(`/compare?${[...chosen].map(run => `run=${encodeURIComponent(run)}`).join("&")}`) }, "Compare");
  const search = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter", oninput: () => { wanted = search.value.toLowerCase(); draw(); } });
  const all = h("input", { type: "checkbox", "aria-label": "Select all runs", onchange: () => { for (const line of shown()) { choose(line.run, all.checked); rows.get(line.run).element.querySelector("input").checked = all.checked; } } });
  replace(page,
    h("div.bar", {}, h("h1", {}, "Runs"), count, h("span.grow", {}), search, compare),
    h("div.scroll", {}, h("table.runs", {}, h("thead", {}, h("tr", {}, h("th.check", {}, all), ...HEADS.map(([name, kind]) => h(`th.${kind}`, {}, name)))), body)),
    waiting);

  const shown = () => [...lines.values()]
    .filter(line => wanted.split(/\s+/).every(word => [line.run, line.environment, line.method, line.state, `seed ${line.seed}`].join(" ").toLowerCase().includes(word)))
    .sort((one, other) => (ORDER[one.state] !== 0) - (ORDER[other.state] !== 0) || (other.changed ?? 0) - (one.changed ?? 0));

  function choose(run, is) {
    if (is) chosen.add(run);
    else chosen.delete(run);
    if (rows.has(run)) rows.get(run).isChosen = is;
    compare.disabled = !chosen.size;
    compare.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
  }

  /** Draw what has changed: rows stay in place, so that one of them can have the focus. */
  function draw() {
    const found = shown(), elements = found.map(line => {
      const known = rows.get(line.run);
      if (known?.line === line && known.isChosen === chosen.has(line.run)) return known.element;
      const element = row(line, chosen.has(line.run), is => choose(line.run, is));
      rows.set(line.run, { line, element, isChosen: chosen.has(line.run) });
      return element;
    });
    if (elements.length !== body.children.length || elements.some((element, place) => element !== body.children[place])) replace(body, elements);
    const running = [...lines.values()].filter(line => line.state === "running").length;
    count.textContent = `${counted(lines.size, "run")}${running ? `, ${running} running` : ""}${found.length < lines.size ? `, ${found.length} shown` : ""}`;
    waiting.hidden = complete && lines.size > 0;
    if (complete && !lines.size) waiting.textContent = `There are no runs in ${session.root} yet. Start one: dpsr-apex train quickstart`;
  }

  const unlisten = listen("/api/runs", event => {
    for (const line of event.lines) lines.set(line.run, line);
    for (const run of event.gone ?? []) { lines.delete(run); choose(run, false); }
    complete ||= event.complete;
    if (event.lines.length || event.gone?.length || event.complete) draw();
  }, problem => { if (problem) { waiting.hidden = false; waiting.textContent = problem; } });
  return unlisten;
}

function row(line, isChosen, onChoose) {
  const check = h("td.check", {}, h("input", { type: "checkbox", checked: isChosen, "aria-label": `Select ${line.run}`, onchange: event => onChoose(event.target.checked) }));
  const name = h("td.name", {}, h("a", { href: pageOf(line.run) }, line.run), h("div.state", { "data-state": line.state }, line.state, line.note ? h("span.muted", {}, ` · ${line.note}`) : null));
  const open = event => { if (!event.target.closest("a, input")) go(pageOf(line.run)); };
  if (line.state === "damaged") return h("tr", { onclick: open }, check, name, h("td.muted", { colSpan: HEADS.length - 1 }, "This run cannot be read."));
  const share = Math.min(line.done / line.goal, 1);
  return h("tr", { onclick: open }, check, name,
    h("td.wide", {}, line.environment), h("td.wide", {}, line.method), h("td.figure.wide", {}, String(line.seed)),
    h("td.progress", { title: `${number(line.done)} of ${number(line.goal)} ${line.unit}` }, h("div.meter", {}, h("i", { style: { width: percent(share, 1).replace(" ", "") } })), h("span.muted", {}, `${percent(share)} of ${short(line.goal)}`)),
    h("td.figure", {}, short(line.score)), h("td.wide", {}, spark(line.spark)), h("td.figure.muted.wide", { title: new Date(1000 * line.changed).toLocaleString() }, ago(line.changed)));
}

/** A line of scores, without axes. */
function spark(points) {
  const width = 120, height = 26;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "sparkline", "aria-hidden": "true" });
  if (points.length < 2) return drawing;
  const xs = points.map(point => point[0]), ys = points.map(point => point[1]);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const at = ([x, y]) => `${(2 + (width - 4) * (x - left) / (right - left || 1)).toFixed(1)},${(height - 3 - (height - 6) * (y - low) / (high - low || 1)).toFixed(1)}`;
  const line = points.map(at).join(" ");
  const [endX, endY] = at(points.at(-1)).split(",");
  drawing.append(svg("polyline", { points: line }), svg("circle", { cx: endX, cy: endY, r: 2.2 }));
  return drawing;
}
