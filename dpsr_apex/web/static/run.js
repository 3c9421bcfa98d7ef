// One run, live: everything that the terminal view shows, with history, logs and controls.

import { attempt, change, css, duration, h, json, listen, number, pageOf, percent, replace, runUrl, short, signed, whole } from "./dom.js";
import { bandOf, chart, forget, legendOf, lineOf, smoothed } from "./charts.js";

export async function showRun(page, { run, session, stillHere }) {
  const facts = await json(runUrl(run, "facts"));
  if (!stillHere()) return undefined;
  const view = new RunView(page, run, facts, session);
  const unlisten = listen(runUrl(run, "live"), event => view.take(event), problem => view.warn(problem));
  const redraw = () => view.drawCharts();
  addEventListener("theme", redraw);
  return () => { unlisten(); removeEventListener("theme", redraw); view.leave(); };
}

/** The name of a run and what it is, with more at both ends of the line. */
export const heading = (facts, left, right) => h("div.bar.heading", {}, h("h1", {}, facts.run), left, h("span.muted", {}, `${facts.environment} · ${facts.method} · ${facts.agent} · seed ${facts.seed}`), h("span.grow", {}), right);

export function tabs(run, active) {
  const tab = (name, href, id) => h("a", { href, "aria-current": active === id ? "page" : null }, name);
  return h("nav.tabs", {}, tab("Overview", pageOf(run), "run"), tab("Replay map", pageOf(run, "map"), "map"), tab("Stars", pageOf(run, "stars"), "stars"));
}

class RunView {
  constructor(page, run, facts, session) {
    this.run = run;
    this.facts = facts;
    this.session = session;
    this.rows = [];
    this.evaluations = [];
    this.lastDrawn = 0;
    this.state = h("span.state", {});
    this.progress = h("div.headline", {});
    this.cards = h("div.cards", {});
    this.problem = h("p.warning", { hidden: true });
    this.charts = Object.fromEntries(Object.entries(CHARTS).map(([name, one]) => [name, { ...one, plot: h("div.plot", {}), legend: h("div.legend", {}) }]));
    this.actors = h("div", {});
    this.notes = h("div.log", {});
    this.waiting = h("p.waiting", {});
    replace(page,
      heading(facts, this.state, this.controls()), tabs(run, "run"), this.problem, this.progress, this.cards, this.waiting,
      h("div.charts", {}, Object.values(this.charts).map(one => h("section.panel", { hidden: true }, h("div.chart-title", {}, h("h2", { title: one.hint }, one.title), one.legend), one.plot))),
      h("div.columns", {}, this.actorPanel(), this.notePanel()),
      this.logPanel(), this.configPanel());
  }

  controls() {
    if (!this.facts.has_head || !this.session.may_change) return null;
    const rate = h("input", { type: "number", min: 0, value: String(this.facts.steps_per_update), "aria-label": "Transitions per update" });
    const actors = h("input", { type: "number", min: 1, value: "1", "aria-label": "Actors" });
    this.rateField = rate;
    this.actorField = actors;
    const send = (field, name, url) => attempt(async () => {
      await change(runUrl(this.run, url), "POST", { [name]: Number(field.value) });
      field.blur();
    });
    this.controlBox = h("form.controls", { hidden: true, onsubmit: event => event.preventDefault() },
      h("label", { title: "Transitions that actors insert for each update of the learner; 0: no fixed ratio" }, "Steps per update", rate, h("button", { onclick: () => send(rate, "steps_per_update", "rate") }, "Set")),
      h("label", { title: "Actor processes on this machine" }, "Actors", actors, h("button", { onclick: () => send(actors, "actors", "actors") }, "Set")));
    return this.controlBox;
  }

  take(event) {
    if (event.reset) { this.rows = []; this.evaluations = []; }
    this.rows.push(...event.rows);
    this.evaluations.push(...event.evaluations);
    this.line = event.line;
    this.now = event.now;
    this.drawNow();
    if (event.reset || event.rows.length || event.evaluations.length) this.drawCharts();
  }

  warn(problem) {
    this.problem.hidden = !problem;
    this.problem.textContent = problem ?? "";
  }

  drawNow() {
    const { line, now } = this, row = now.row, stats = now.stats;
    const running = line.state === "running";
    this.state.textContent = line.state;
    this.state.dataset.state = line.state;
    if (line.state === "damaged") { this.warn(line.note); return; }
    if (this.controlBox) this.controlBox.hidden = !running;
    const done = Math.max(line.done, stats && line.unit === "transitions" ? stats.t : 0), share = Math.min(done / line.goal, 1);
    replace(this.progress, h("div.meter.big", {}, h("i", { style: { width: `${100 * share}%` } })),
      h("p.muted", {}, `${whole(done)} of ${whole(line.goal)} ${line.unit} · ${percent(share, share < 1 ? 1 : 0)}`, running && now.left ? ` · ${now.left} left` : "",
        row.elapsed_seconds === undefined ? "" : running ? ` · ${duration(row.elapsed_seconds)} so far` : ` · took ${duration(row.elapsed_seconds)}`, line.note ? ` · ${line.note}` : ""));
    const card = (name, value, note) => h("div.card", {}, h("span.label", {}, name), h("b", {}, value), h("span.muted", {}, note ?? ""));
    const evaluation = this.evaluations.at(-1);
    const gain = row.recycled ? row.recycled_gain / row.recycled : null;
    replace(this.cards,
      card("Return", number(row.return_mean ?? this.newest("return_mean"), 4), `best ${number(row.return_best, 4)} · ${whole(row.episodes)} episodes`),
      card("Evaluation", number(evaluation?.mean, 4), evaluation ? `at t = ${whole(evaluation.t)}` : "none yet"),
      card("Speed", `${short(row.steps_per_second)}/s`, `${short(row.updates_per_second)} updates/s`),
      card("Loss", number(row.loss, 3), `mean Q ${number(row.mean_q, 3)}`),
      card("Replay", percent(row.fill), `${whole(stats?.stored ?? row.stored)} of ${whole(this.facts.capacity)}`),
      card("Recycled", whole(row.recycled), gain === null ? `${whole(row.rounds_opened)} rounds` : `mean gain ${signed(gain)}`),
      stats ? card("Policy age", number(row.policy_age_mean, 3), `p95 ${number(row.policy_age_p95, 3)} updates`) : card("Exploration", number(row.epsilon, 3), "ε"),
      card("Steps per update", number(stats?.achieved ?? row.steps_per_update, 3), stats ? (stats.steps_per_update ? `target ${stats.steps_per_update}` : "free running") : ""));
    this.waiting.hidden = !stats;
    this.waiting.textContent = stats?.waiting || "No process is waiting.";
    this.drawActors(stats);
    this.noteBox.hidden = !now.notes?.length;
    if (now.notes) replace(this.notes, now.notes.slice().reverse().map(note => h("p", {}, note)));
    if (stats && this.rateField && document.activeElement !== this.rateField) this.rateField.value = stats.steps_per_update;
    if (stats && this.actorField && document.activeElement !== this.actorField) this.actorField.value = stats.planned_actors;
  }

  newest(name) {
    return this.rows.findLast(row => row[name] !== null && row[name] !== undefined)?.[name];
  }

  drawActors(stats) {
    this.actorBox.hidden = !stats;
    if (!stats) return;
    const epsilon = actor => actor.epsilon_low === actor.epsilon_high ? number(actor.epsilon_low, 2) : `${number(actor.epsilon_low, 2)}–${number(actor.epsilon_high, 2)}`;
    replace(this.actors, h("div.scroll", {}, h("table", {}, h("thead", {}, h("tr", {}, ["Actor", "Steps/s", "ε", "Sent", "Recycles", "Heard"].map((name, place) => h(place ? "th.figure" : "th", {}, name)))),
      h("tbody", {}, stats.actors.map(actor => h("tr", { class: actor.heard_seconds_ago > 3 ? "late" : "" }, h("td", {}, actor.name, actor.host ? ` at ${actor.host}` : ""), h("td.figure", {}, number(actor.speed, 3)), h("td.figure", {}, epsilon(actor)), h("td.figure", {}, short(actor.sent)), h("td.figure", {}, whole(actor.recycling)), h("td.figure", {}, actor.heard_seconds_ago < 1.5 ? "now" : `${Math.round(actor.heard_seconds_ago)} s ago`)))))),
      h("p.muted.small", {}, stats.learner_waiting === null ? "" : `The learner spends ${percent(stats.learner_waiting)} of the time waiting.`));
  }

  actorPanel() {
    this.actorBox = h("section.panel", { hidden: true }, h("h2", {}, "Actors"), this.actors);
    return this.actorBox;
  }

  notePanel() {
    this.noteBox = h("section.panel", { hidden: true }, h("h2", {}, "Notes"), this.notes);
    return this.noteBox;
  }

  logPanel() {
    const text = h("pre.log", {}, "");
    const show = name => attempt(async () => {
      const response = await fetch(runUrl(this.run, "log", encodeURIComponent(name)));
      text.textContent = response.ok ? await response.text() || "(empty)" : `${await response.text()}`;
      text.scrollTop = text.scrollHeight;
    });
    const choice = h("select", { "aria-label": "Log file", onchange: () => show(choice.value) }, this.facts.logs.map(name => h("option", {}, name)));
    return h("details.panel", { ontoggle: event => { if (event.target.open && this.facts.logs.length) show(choice.value); } },
      h("summary", {}, "Logs"), this.facts.logs.length ? h("div.bar", {}, choice, h("button", { onclick: () => show(choice.value) }, "Reload")) : h("p.muted", {}, "No logs yet."), text);
  }

  configPanel() {
    return h("details.panel", {}, h("summary", {}, "Settings and provenance"), h("pre", {}, this.facts.provenance.join("\n") || "No provenance was recorded."), h("pre", {}, this.facts.config));
  }

  async drawCharts() {
    const charts = Object.values(this.charts).map(one => [one, one.traces(this.rows, this.evaluations)]);
    for (const [one, traces] of charts) one.plot.parentElement.hidden = !traces.length; // all of them first, as they share the width
    for (const [one, traces] of charts.filter(([, traces]) => traces.length)) {
      replace(one.legend, legendOf(traces));
      await attempt(() => chart(one.plot, traces, { ...one.options, title: one.title }));
    }
  }

  leave() {
    for (const one of Object.values(this.charts)) forget(one.plot);
  }
}

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
  const t = known.map(row => row.t), at = place => known.map(row => Math.max(row[name][place], 1e-7)), colour = css("--accent");
  return [...[0, 1, 2, 3, 4].flatMap(place => bandOf(t, at(place), at(10 - place), colour, 0.13)), lineOf("median, with decile bands", t, at(5), colour)];
}

function gains(rows) {
  const t = [], values = [];
  for (let place = 1; place < rows.length; place++) {
    const made = rows[place].recycled - rows[place - 1].recycled;
    if (made > 0) { t.push(rows[place].t); values.push((rows[place].recycled_gain - rows[place - 1].recycled_gain) / made); }
  }
  return [t, values];
}

const REPLACED = { line: { dash: "dot" } };
const CHARTS = {
  returns: {
    title: "Return", hint: "Score per episode", options: {}, traces: (rows, evaluations) => {
      const [t, values] = points(rows, "return_mean"), traces = [];
      if (t.length) traces.push({ ...lineOf("each interval", t, values, css("--accent"), { line: { width: 1 }, mode: "lines" }), opacity: 0.3, showlegend: false }, lineOf("training", t, smoothed(values), css("--accent")));
      const known = evaluations.filter(one => Number.isFinite(one.mean));
      if (known.length) traces.push(lineOf("evaluation", known.map(one => one.t), known.map(one => one.mean), css("--terminal"), { mode: "lines+markers" }));
      return traces;
    },
  },
  loss: { title: "Loss and mean Q", options: { layout: { yaxis2: { overlaying: "y", side: "right", showgrid: false, zeroline: false, tickformat: ".3~g", nticks: 6, tickfont: { size: 11 }, automargin: true }, margin: { l: 44, r: 40, t: 8, b: 38 } } }, traces: rows => [...single(rows, "loss", "loss", "--recycled"), ...single(rows, "mean_q", "mean Q (right axis)", "--accent", { yaxis: "y2" })] },
  throughput: { title: "Per second", hint: "Transitions inserted and updates made per second", options: {}, traces: rows => [...single(rows, "steps_per_second", "transitions", "--accent"), ...single(rows, "updates_per_second", "updates", "--rewarded")] },
  age: { title: "Policy age", hint: "How many updates the weights of the actors are behind the learner", options: { unit: "updates" }, traces: rows => [...single(rows, "policy_age_mean", "mean", "--accent"), ...single(rows, "policy_age_p95", "95th percentile", "--recycled")] },
  ages: { title: "Ages in the replay", hint: "Bands between deciles over all stored transitions", options: {}, traces: rows => [...deciles(rows, "age_deciles"), ...single(rows, "replaced_age_mean", "mean of replaced", "--muted", REPLACED)] },
  priorities: { title: "Priorities in the replay", hint: "Bands between deciles over all stored transitions", options: { log: true }, traces: rows => [...deciles(rows, "priority_deciles"), ...single(rows, "replaced_priority_mean", "mean of replaced", "--muted", REPLACED)] },
  recycling: { title: "Recycling", hint: "Priority of a recycled transition minus that of the transition that it replaced", options: {}, traces: rows => { const [t, values] = gains(rows); return t.length ? [lineOf("mean gain in priority", t, values, css("--recycled"))] : []; } },
  exploration: { title: "Exploration and fill", options: {}, traces: rows => [...single(rows, "epsilon", "ε", "--muted"), ...single(rows, "fill", "fill of the replay", "--rewarded")] },
};
