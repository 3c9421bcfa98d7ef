// The history of a run as charts.

import { bandOf, chart, forget, legendOf, lineOf, smoothed } from "./charts.js";
import { attempt, css, h, replace } from "./dom.js";

/** The points of one metric, without the rows that lack it. */
function points(rows, name) {
  const known = rows.filter(row => row[name] !== null && row[name] !== undefined);
  return [known.map(row => row.t), known.map(row => row[name])];
}

function single(rows, name, label, colour, more) {
  const [t, values] = points(rows, name);
  return t.length ? [lineOf(label, t, values, css(colour), more)] : [];
}

/** Deciles as nested bands, with the median. */
function deciles(rows, name) {
  const known = rows.filter(row => Array.isArray(row[name]) && row[name].length === 11);
  if (!known.length) return [];
  const t = known.map(row => row.t),
    at = place => known.map(row => Math.max(row[name][place], 1e-7)),
    colour = css("--accent");
  return [
    ...[0, 1, 2, 3, 4].flatMap(place => bandOf(t, at(place), at(10 - place), colour, 0.13)),
    lineOf("median, with decile bands", t, at(5), colour),
  ];
}

function gains(rows) {
  const t = [],
    values = [];
  for (let place = 1; place < rows.length; place++) {
    const made = rows[place].recycled - rows[place - 1].recycled;
    if (made > 0) {
      t.push(rows[place].t);
      values.push((rows[place].recycled_gain - rows[place - 1].recycled_gain) / made);
    }
  }
  return [t, values];
}

function scores(rows, evaluations) {
  const [t, values] = points(rows, "return_mean"),
    known = evaluations.filter(one => Number.isFinite(one.mean)),
    traces = [];
  if (t.length) {
    const each = lineOf("each interval", t, values, css("--accent"), { line: { width: 1 }, mode: "lines" });
    traces.push({ ...each, opacity: 0.3, showlegend: false });
    traces.push(lineOf("training", t, smoothed(values), css("--accent")));
  }
  if (known.length) {
    const [at, means] = [known.map(one => one.t), known.map(one => one.mean)];
    traces.push(lineOf("evaluation", at, means, css("--terminal"), { mode: "lines+markers" }));
  }
  return traces;
}

const RIGHT_AXIS = {
  yaxis2: {
    overlaying: "y",
    side: "right",
    showgrid: false,
    zeroline: false,
    tickformat: ".3~g",
    nticks: 6,
    tickfont: { size: 11 },
    automargin: true,
  },
  margin: { l: 44, r: 40, t: 8, b: 38 },
};
const REPLACED = { line: { dash: "dot" } };
const CHARTS = [
  { title: "Return", hint: "Score per episode", traces: scores },
  {
    title: "Loss and mean Q",
    options: { layout: RIGHT_AXIS },
    traces: rows => [
      ...single(rows, "loss", "loss", "--recycled"),
      ...single(rows, "mean_q", "mean Q (right axis)", "--accent", { yaxis: "y2" }),
    ],
  },
  {
    title: "Per second",
    hint: "Transitions inserted and updates made per second",
    traces: rows => [
      ...single(rows, "steps_per_second", "transitions", "--accent"),
      ...single(rows, "updates_per_second", "updates", "--rewarded"),
    ],
  },
  {
    title: "Policy age",
    hint: "How many updates the weights of the actors are behind the learner",
    options: { unit: "updates" },
    traces: rows => [
      ...single(rows, "policy_age_mean", "mean", "--accent"),
      ...single(rows, "policy_age_p95", "95th percentile", "--recycled"),
    ],
  },
  {
    title: "Ages in the replay",
    hint: "Bands between deciles over all stored transitions",
    traces: rows => [
      ...deciles(rows, "age_deciles"),
      ...single(rows, "replaced_age_mean", "mean of replaced", "--muted", REPLACED),
    ],
  },
  {
    title: "Priorities in the replay",
    hint: "Bands between deciles over all stored transitions",
    options: { log: true },
    traces: rows => [
      ...deciles(rows, "priority_deciles"),
      ...single(rows, "replaced_priority_mean", "mean of replaced", "--muted", REPLACED),
    ],
  },
  {
    title: "Recycling",
    hint: "Priority of a recycled transition minus that of the transition that it replaced",
    traces: rows => {
      const [t, values] = gains(rows);
      return t.length ? [lineOf("mean gain in priority", t, values, css("--recycled"))] : [];
    },
  },
  {
    title: "Exploration and fill",
    traces: rows => [
      ...single(rows, "epsilon", "ε", "--muted"),
      ...single(rows, "fill", "fill of the replay", "--rewarded"),
    ],
  },
];

export class Charts {
  constructor() {
    this.charts = CHARTS.map(one => {
      const plot = h("div.plot", {}),
        legend = h("div.legend", {});
      const title = h("div.chart-title", {}, h("h2", { title: one.hint }, one.title), legend);
      return { ...one, plot, legend, panel: h("section.panel", { hidden: true }, title, plot) };
    });
    this.element = h(
      "div.charts",
      {},
      this.charts.map(one => one.panel),
    );
  }

  async draw(rows, evaluations) {
    const drawn = this.charts.map(one => [one, one.traces(rows, evaluations)]);
    for (const [one, traces] of drawn) one.panel.hidden = !traces.length; // all of them first, as they share the width
    for (const [one, traces] of drawn.filter(([, traces]) => traces.length)) {
      replace(one.legend, legendOf(traces));
      await attempt(() => chart(one.plot, traces, { ...one.options, title: one.title }));
    }
  }

  leave() {
    for (const one of this.charts) forget(one.plot);
  }
}
