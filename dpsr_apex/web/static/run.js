// One run, live: everything that the terminal view shows, with history, logs and controls.

import { attempt, change, h, json, listen, replace, runUrl } from "./dom.js";
import { heading, tabs } from "./heading.js";
import { Charts } from "./run_charts.js";
import { actorTable, cardsOf, progressOf } from "./run_now.js";

export async function showRun(page, { run, session, stillHere }) {
  const facts = await json(runUrl(run, "facts"));
  if (!stillHere()) return undefined;
  const view = new RunView(page, run, facts, session);
  const unlisten = listen(
    runUrl(run, "live"),
    event => view.take(event),
    problem => view.warn(problem),
  );
  const redraw = () => view.drawCharts();
  addEventListener("theme", redraw);
  return () => {
    unlisten();
    removeEventListener("theme", redraw);
    view.charts.leave();
  };
}

class RunView {
  constructor(page, run, facts, session) {
    Object.assign(this, { run, facts, session });
    this.rows = [];
    this.evaluations = [];
    this.state = h("span.state", {});
    this.progress = h("div.headline", {});
    this.cards = h("div.cards", {});
    this.problem = h("p.warning", { hidden: true });
    this.charts = new Charts();
    this.actors = h("div", {});
    this.actorBox = h("section.panel", { hidden: true }, h("h2", {}, "Actors"), this.actors);
    this.notes = h("div.log", {});
    this.noteBox = h("section.panel", { hidden: true }, h("h2", {}, "Notes"), this.notes);
    this.waiting = h("p.waiting", {});
    replace(
      page,
      heading(facts, this.state, this.controls()),
      tabs(run, "run"),
      this.problem,
      this.progress,
      this.cards,
      this.waiting,
      this.charts.element,
      h("div.columns", {}, this.actorBox, this.noteBox),
      this.logPanel(),
      this.configPanel(),
    );
  }

  controls() {
    if (!this.facts.has_head || !this.session.may_change) return null;
    const perUpdate = String(this.facts.steps_per_update);
    this.rate = h("input", { type: "number", min: 0, value: perUpdate, "aria-label": "Transitions per update" });
    this.actorCount = h("input", { type: "number", min: 1, value: "1", "aria-label": "Actors" });
    const send = (field, name, url) =>
      attempt(async () => {
        await change(runUrl(this.run, url), "POST", { [name]: Number(field.value) });
        field.blur();
      });
    const control = (title, text, field, name, url) =>
      h("label", { title }, text, field, h("button", { onclick: () => send(field, name, url) }, "Set"));
    const rateHint = "Transitions that actors insert for each update of the learner; 0: no fixed ratio";
    this.controlBox = h(
      "form.controls",
      { hidden: true, onsubmit: event => event.preventDefault() },
      control(rateHint, "Steps per update", this.rate, "steps_per_update", "rate"),
      control("Actor processes on this machine", "Actors", this.actorCount, "actors", "actors"),
    );
    return this.controlBox;
  }

  take(event) {
    if (event.reset) Object.assign(this, { rows: [], evaluations: [] });
    this.rows.push(...event.rows);
    this.evaluations.push(...event.evaluations);
    this.drawNow(event.line, event.now);
    if (event.reset || event.rows.length || event.evaluations.length) this.drawCharts();
  }

  warn(problem) {
    this.problem.hidden = !problem;
    this.problem.textContent = problem ?? "";
  }

  drawNow(line, now) {
    const { stats, row, notes } = now;
    this.state.textContent = line.state;
    this.state.dataset.state = line.state;
    if (line.state === "damaged") {
      this.warn(line.note);
      return;
    }
    const lastReturn = row.return_mean ?? this.newest("return_mean");
    const known = { lastReturn, evaluation: this.evaluations.at(-1), capacity: this.facts.capacity };
    replace(this.progress, progressOf(line, now));
    replace(this.cards, cardsOf(now, known));
    this.waiting.hidden = this.actorBox.hidden = !stats;
    this.waiting.textContent = stats?.waiting || "No process is waiting.";
    if (stats) replace(this.actors, actorTable(stats));
    this.noteBox.hidden = !notes?.length;
    if (notes)
      replace(
        this.notes,
        notes.toReversed().map(note => h("p", {}, note)),
      );
    if (this.controlBox) this.drawControls(line.state === "running", stats);
  }

  /** Show the present values, except in a field that is being edited. */
  drawControls(isRunning, stats) {
    this.controlBox.hidden = !isRunning;
    if (!stats) return;
    if (document.activeElement !== this.rate) this.rate.value = stats.steps_per_update;
    if (document.activeElement !== this.actorCount) this.actorCount.value = stats.planned_actors;
  }

  drawCharts() {
    this.charts.draw(this.rows, this.evaluations);
  }

  newest(name) {
    return this.rows.findLast(row => row[name] !== null && row[name] !== undefined)?.[name];
  }

  logPanel() {
    const { logs } = this.facts,
      text = h("pre.log", {}, "");
    const show = () =>
      attempt(async () => {
        const response = await fetch(runUrl(this.run, "log", encodeURIComponent(choice.value)));
        text.textContent = (await response.text()) || "(empty)"; // or the reason why there is no text
        text.scrollTop = text.scrollHeight;
      });
    const choice = h(
      "select",
      { "aria-label": "Log file", onchange: show },
      logs.map(name => h("option", {}, name)),
    );
    const bar = h("div.bar", {}, choice, h("button", { onclick: show }, "Reload"));
    const open = event => {
      if (event.target.open && logs.length) show();
    };
    const content = logs.length ? bar : h("p.muted", {}, "No logs yet.");
    return h("details.panel", { ontoggle: open }, h("summary", {}, "Logs"), content, text);
  }

  configPanel() {
    return h(
      "details.panel",
      {},
      h("summary", {}, "Settings and provenance"),
      h("pre", {}, this.facts.provenance.join("\n") || "No provenance was recorded."),
      h("pre", {}, this.facts.config),
    );
  }
}
