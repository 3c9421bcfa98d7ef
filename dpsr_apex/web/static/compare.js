// Overlaid curves of several runs, with an interval over the seeds of each group.

import { attempt, counted, h, json, notice, number, replace } from "./dom.js";
import { bandOf, chart, forget, legendOf, lineOf } from "./charts.js";

const KINDS = { evaluation: "Evaluations", training: "Training" };

export async function showCompare(page, { query, stillHere }) {
  const view = new CompareView(page, query.getAll("run"), stillHere);
  const redraw = () => attempt(() => view.draw());
  await view.draw();
  addEventListener("theme", redraw);
  return () => {
    removeEventListener("theme", redraw);
    view.forget();
  };
}

class CompareView {
  constructor(page, runs, stillHere) {
    Object.assign(this, { runs, stillHere });
    this.charts = h("div.stack", {});
    this.plots = [];
    const names = Object.entries(KINDS);
    this.buttons = names.map(([kind, text]) => h("button", { onclick: () => attempt(() => this.choose(kind)) }, text));
    this.press("evaluation");
    const choice = h("div.segmented", { role: "group", "aria-label": "Scores" }, this.buttons);
    const count = h("span.muted", {}, counted(runs.length, "run"));
    replace(page, h("div.bar", {}, h("h1", {}, "Compare"), count, h("span.grow", {}), choice), this.charts);
  }

  press(kind) {
    this.kind = kind;
    for (const [place, name] of Object.keys(KINDS).entries()) {
      this.buttons[place].setAttribute("aria-pressed", String(name === kind));
    }
  }

  choose(kind) {
    this.press(kind);
    return this.draw();
  }

  async draw() {
    const { kind, runs } = this;
    const found = await json(`/api/curves?kind=${kind}&${runs.map(run => `run=${encodeURIComponent(run)}`).join("&")}`);
    if (!this.stillHere() || kind !== this.kind) return;
    for (const one of found.unreadable) notice(`${one.path}: ${one.reason}`, "bad");
    this.forget();
    const panels = found.environments.map(environment => panel(environment));
    this.plots = panels.map(one => one.plot);
    replace(
      this.charts,
      panels.map(one => one.element),
    );
    if (!panels.length) replace(this.charts, h("p.muted", {}, "None of these runs has scores yet."));
    for (const [place, environment] of found.environments.entries()) {
      const traces = tracesOf(environment),
        title = `${environment.name} ${kind}`;
      replace(panels[place].legend, legendOf(traces));
      await chart(panels[place].plot, traces, { title, unit: "score per episode", height: 400 });
    }
  }

  forget() {
    this.plots.forEach(forget);
  }
}

function panel(environment) {
  const plot = h("div.plot", {}),
    legend = h("div.legend", {}),
    banded = environment.groups.some(group => group.band && group.seeds > 1);
  const groups = environment.groups
    .map(group => `${group.label}: ${counted(group.seeds, "seed")}${last(group)}`)
    .join(" · ");
  return {
    plot,
    legend,
    element: h(
      "section.panel",
      {},
      h("div.chart-title", {}, h("h2", {}, environment.name), legend),
      plot,
      h(
        "p.muted.small",
        {},
        `${groups}.${banded ? " Bold: the interquartile mean over seeds with its 95 % bootstrap interval; thin: each seed." : ""}`,
      ),
    ),
  };
}

const last = group => (group.band?.t.length ? `, ${number(group.band.middle.at(-1))} at the end` : "");

function tracesOf(environment) {
  const traces = [],
    few = environment.groups.reduce((sum, one) => sum + one.points.length, 0) <= 20;
  for (const group of environment.groups) {
    if (group.band) {
      const { t, low, high, middle } = group.band,
        many = group.seeds > 1;
      if (many) traces.push(...bandOf(t, low, high, group.colour));
      if (few && many)
        for (const seed of group.points)
          traces.push({
            ...lineOf("", seed.t, seed.y, group.colour, { mode: "lines", line: { width: 1 } }),
            opacity: 0.28,
            showlegend: false,
            hoverinfo: "skip",
            hovertemplate: undefined,
          });
      traces.push(lineOf(group.label, t, middle, group.colour, { line: { width: 2.4 } }));
    } else
      for (const [place, seed] of group.points.entries())
        traces.push(lineOf(group.label, seed.t, seed.y, group.colour, { mode: "lines+markers", showlegend: !place }));
  }
  return traces;
}
