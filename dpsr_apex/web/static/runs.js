// The table of all runs, live; several can be selected to compare their curves.

import { go } from "./app.js";
import { ago, counted, h, listen, number, pageOf, percent, replace, short, svg } from "./dom.js";

const HEADS = [
  ["Run", "name"],
  ["Environment", "wide"],
  ["Method", "wide"],
  ["Seed", "figure.wide"],
  ["Progress", "progress"],
  ["Last score", "figure"],
  ["Scores", "wide"],
  ["Changed", "figure.wide"],
];
const SPARK = { width: 120, height: 26 }; // CSS pixels

export function showRuns(page, { session }) {
  const view = new RunsView(page, session.root);
  return listen(
    "/api/runs",
    event => view.take(event),
    problem => view.warn(problem),
  );
}

class RunsView {
  constructor(page, root) {
    this.root = root;
    this.lines = new Map(); // by run
    this.rows = new Map(); // by run: the line, its element, and whether it is selected
    this.selected = new Set();
    this.isComplete = false;
    this.body = h("tbody", {});
    this.count = h("span.muted", {});
    this.waiting = h("p.muted", {}, "Reading the runs…");
    const compare = {
      disabled: true,
      title: "Select runs in the table to overlay their curves",
      onclick: () => this.compare(),
    };
    this.button = h("button.primary", compare, "Compare");
    this.search = h("input", {
      type: "search",
      placeholder: "Filter runs",
      "aria-label": "Filter",
      oninput: () => this.draw(),
    });
    this.all = h("input", { type: "checkbox", "aria-label": "Select all runs", onchange: () => this.selectAll() });
    const heads = HEADS.map(([name, kind]) => h(`th.${kind}`, {}, name));
    const head = h("thead", {}, h("tr", {}, h("th.check", {}, this.all), heads));
    replace(
      page,
      h("div.bar", {}, h("h1", {}, "Runs"), this.count, h("span.grow", {}), this.search, this.button),
      h("div.scroll", {}, h("table.runs", {}, head, this.body)),
      this.waiting,
    );
  }

  take(event) {
    for (const line of event.lines) this.lines.set(line.run, line);
    for (const run of event.gone ?? []) {
      this.lines.delete(run);
      this.select(run, false);
    }
    this.isComplete ||= Boolean(event.complete);
    if (event.lines.length || event.gone?.length || event.complete) this.draw();
  }

  warn(problem) {
    if (!problem) return;
    this.waiting.hidden = false;
    this.waiting.textContent = problem;
  }

  /** The lines that the filter accepts: running runs first, then those that have changed last. */
  shown() {
    const words = this.search.value.toLowerCase().split(/\s+/);
    const text = line =>
      [line.run, line.environment, line.method, line.state, `seed ${line.seed}`].join(" ").toLowerCase();
    const isEnded = line => Number(line.state !== "running");
    return [...this.lines.values()]
      .filter(line => words.every(word => text(line).includes(word)))
      .sort((one, other) => isEnded(one) - isEnded(other) || (other.changed ?? 0) - (one.changed ?? 0));
  }

  select(run, isSelected) {
    if (isSelected) this.selected.add(run);
    else this.selected.delete(run);
    if (this.rows.has(run)) this.rows.get(run).isSelected = isSelected;
    this.button.disabled = !this.selected.size;
    this.button.textContent = this.selected.size ? `Compare ${this.selected.size}` : "Compare";
  }

  selectAll() {
    for (const { run } of this.shown()) {
      this.select(run, this.all.checked);
      this.rows.get(run).element.querySelector("input").checked = this.all.checked;
    }
  }

  compare() {
    go(`/compare?${[...this.selected].map(run => `run=${encodeURIComponent(run)}`).join("&")}`);
  }

  /** Draw what has changed: rows stay in place, so that one of them can have the focus. */
  draw() {
    const found = this.shown(),
      elements = found.map(line => this.row(line)),
      present = this.body.children;
    const isSame = elements.length === present.length && elements.every((element, place) => element === present[place]);
    if (!isSame) replace(this.body, elements);
    const running = [...this.lines.values()].filter(line => line.state === "running").length;
    const parts = [
      counted(this.lines.size, "run"),
      running ? `${running} running` : null,
      found.length < this.lines.size ? `${found.length} shown` : null,
    ];
    this.count.textContent = parts.filter(Boolean).join(", ");
    this.waiting.hidden = this.isComplete && this.lines.size > 0;
    if (this.isComplete && !this.lines.size) {
      this.waiting.textContent = `There are no runs in ${this.root} yet. Start one: dpsr-apex train quickstart`;
    }
  }

  row(line) {
    const known = this.rows.get(line.run),
      isSelected = this.selected.has(line.run);
    if (known?.line === line && known.isSelected === isSelected) return known.element;
    const element = rowOf(line, isSelected, is => this.select(line.run, is));
    this.rows.set(line.run, { line, element, isSelected });
    return element;
  }
}

function rowOf(line, isSelected, onSelect) {
  const box = {
    type: "checkbox",
    checked: isSelected,
    "aria-label": `Select ${line.run}`,
    onchange: event => onSelect(event.target.checked),
  };
  const note = line.note ? h("span.muted", {}, ` · ${line.note}`) : null;
  const state = h("div.state", { "data-state": line.state }, line.state, note);
  const open = event => {
    if (!event.target.closest("a, input")) go(pageOf(line.run));
  };
  const unreadable = h("td.muted", { colSpan: HEADS.length - 1 }, "This run cannot be read.");
  return h(
    "tr",
    { onclick: open },
    h("td.check", {}, h("input", box)),
    h("td.name", {}, h("a", { href: pageOf(line.run) }, line.run), state),
    line.state === "damaged" ? unreadable : cellsOf(line),
  );
}

function cellsOf(line) {
  const share = Math.min(line.done / line.goal, 1),
    width = percent(share, 1).replace(" ", "");
  const progress = { title: `${number(line.done)} of ${number(line.goal)} ${line.unit}` };
  const changed = { title: new Date(1000 * line.changed).toLocaleString() };
  const meter = h("div.meter", {}, h("i", { style: { width } }));
  return [
    h("td.wide", {}, line.environment),
    h("td.wide", {}, line.method),
    h("td.figure.wide", {}, String(line.seed)),
    h("td.progress", progress, meter, h("span.muted", {}, `${percent(share)} of ${short(line.goal)}`)),
    h("td.figure", {}, short(line.score)),
    h("td.wide", {}, sparkline(line.spark)),
    h("td.figure.muted.wide", changed, ago(line.changed)),
  ];
}

/** A line of scores, without axes. */
function sparkline(points) {
  const { width, height } = SPARK;
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    class: "sparkline",
    "aria-hidden": "true",
  });
  if (points.length < 2) return drawing;
  const xs = points.map(([x]) => x),
    ys = points.map(([, y]) => y);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const places = points.map(([x, y]) => [
    (2 + ((width - 4) * (x - left)) / (right - left || 1)).toFixed(1),
    (height - 3 - ((height - 6) * (y - low)) / (high - low || 1)).toFixed(1),
  ]);
  const [cx, cy] = places.at(-1);
  drawing.append(svg("polyline", { points: places.join(" ") }), svg("circle", { cx, cy, r: 2.2 }));
  return drawing;
}
