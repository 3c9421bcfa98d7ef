// Overlaid curves of several runs, with an interval over the seeds of each group.

import { counted, h, json, notice, number, replace } from "./dom.js";
import { bandOf, chart, forget, legendOf, lineOf } from "./charts.js";

const KINDS = { evaluation: "Evaluations", training: "Training" };

export async function showCompare(page, { query, stillHere }) {
  const runs = query.getAll("run"), charts = h("div.stack", {}), plots = [];
  let kind = "evaluation";
  const choose = name => { kind = name; drawButtons(); draw(); };
  const buttons = Object.entries(KINDS).map(([name, text]) => h("button", { onclick: () => choose(name) }, text));
  const drawButtons = () => Object.keys(KINDS).forEach((name, place) => buttons[place].setAttribute("aria-pressed", String(name === kind)));
  drawButtons();
  replace(page, h("div.bar", {}, h("h1", {}, "Compare"), h("span.muted", {}, counted(runs.length, "run")), h("span.grow", {}), h("div.segmented", { role: "group", "aria-label": "Scores" }, buttons)), charts);

  async function draw() {
    const found = await json(`/api/curves?kind=${kind}&${runs.map(run => `run=${encodeURIComponent(run)}`).join("&")}`);
    if (!stillHere()) return;
    for (const one of found.unreadable) notice(`${one.path}: ${one.reason}`, "bad");
    plots.splice(0).forEach(forget);
    const panels = found.environments.map(environment => panel(environment));
    plots.push(...panels.map(one => one.plot));
    replace(charts, panels.map(one => one.element));
    if (!panels.length) replace(charts, h("p.muted", {}, "None of these runs has scores yet."));
    for (const [place, environment] of found.environments.entries()) {
      const traces = tracesOf(environment);
      replace(panels[place].legend, legendOf(traces));
      await chart(panels[place].plot, traces, { title: `${environment.name} ${kind}`, unit: "score per episode", height: 400 });
    }
  }

  await draw();
  const redraw = () => draw();
  addEventListener("theme", redraw);
  return () => { removeEventListener("theme", redraw); plots.forEach(forget); };
}

function panel(environment) {
  const plot = h("div.plot", {}), legend = h("div.legend", {}), banded = environment.groups.some(group => group.band && group.seeds > 1);
  const groups = environment.groups.map(group => `${group.label}: ${counted(group.seeds, "seed")}${last(group)}`).join(" · ");
  return { plot, legend, element: h("section.panel", {}, h("div.chart-title", {}, h("h2", {}, environment.name), legend), plot, h("p.muted.small", {}, `${groups}.${banded ? " Bold: the interquartile mean over seeds with its 95 % bootstrap interval; thin: each seed." : ""}`)) };
}

const last = group => group.band?.t.length ? `, ${number(group.band.middle.at(-1))} at the end` : "";

function tracesOf(environment) {
  const traces = [], few = environment.groups.reduce((sum, one) => sum + one.points.length, 0) <= 20;
  for (const group of environment.groups) {
    if (group.band) {
      const { t, low, high, middle } = group.band, many = group.seeds > 1;
      if (many) traces.push(...bandOf(t, low, high, group.colour));
      if (few && many) for (const seed of group.points) traces.push({ ...lineOf("", seed.t, seed.y, group.colour, { mode: "lines", line: { width: 1 } }), opacity: 0.28, showlegend: false, hoverinfo: "skip", hovertemplate: undefined });
      traces.push(lineOf(group.label, t, middle, group.colour, { line: { width: 2.4 } }));
    } else for (const [place, seed] of group.points.entries()) traces.push(lineOf(group.label, seed.t, seed.y, group.colour, { mode: "lines+markers", showlegend: !place }));
  }
  return traces;
}
