// The map: every stored transition as a point, from a checkpoint or from the running replay.

import { go } from "./app.js";
import { warmUp } from "./connection.js";
import { attempt, fetched, h, icon, idle, json, notice, pageOf, replace, runUrl, whole } from "./dom.js";
import { Filters } from "./filters.js";
import { heading, tabs } from "./heading.js";
import { Scatter } from "./scatter.js";
import { Sheet } from "./sheet.js";
import { AXIS_NAMES, axisOf, countText, readSurvey } from "./survey.js";
import { factsOf, Tip } from "./tip.js";

const FIRST = 50_000; // transitions of a larger replay that are shown at first
const FOLLOW_EVERY = 8000; // milliseconds
const MOST_FOLLOWED = 200_000; // transitions of which each is followed from one survey to the next
const REST = 40; // milliseconds of the pointer on a point, before its frames are requested
const BY_MOUSE =
  "Each point is a stored transition: hover over it to see its frames, click it to open it. " +
  "Scroll to zoom, drag to pan, drag with Shift to select several.";
const BY_TOUCH =
  "Each point is a stored transition: tap it to see its frames, tap it again to open it. Pinch to zoom, drag to pan.";

export async function showMap(page, { run, stillHere }) {
  const began = performance.now();
  const [facts, survey] = await Promise.all([json(runUrl(run, "facts")), surveyOf(run, "", { most: FIRST })]);
  if (!stillHere()) return undefined;
  const view = new MapView(page, run, facts);
  view.take(survey);
  const actions = (survey.ranges.action?.[1] ?? -1) + 1;
  view.filters.actions.setNames(Array.from({ length: actions }, (_, action) => `action ${action}`));
  const environment = json(runUrl(run, "environment"));
  attempt(async () => {
    const found = await environment;
    if (stillHere()) view.nameActions(found.actions);
  });
  view.complete(name => {
    document.documentElement.dataset[`${name}Milliseconds`] = String(Math.round(performance.now() - began));
  });
  return () => view.leave();
}

/** The survey of a source, or of the newest one; at most `most` transitions, spread over all. */
async function surveyOf(run, at, { most = null, signal = null } = {}) {
  const query = new URLSearchParams([...(at ? [["at", at]] : []), ...(most ? [["most", most]] : [])]);
  const response = await fetched(runUrl(run, `map?${query}`), { signal });
  return { ...readSurvey(await response.arrayBuffer()), source: response.headers.get("x-source") };
}

class MapView {
  constructor(page, run, facts) {
    this.run = run;
    this.facts = facts;
    this.loading = null; // what aborts it
    this.actions = []; // names, once they are known
    this.axes = { x: "age", y: "priority" };
    this.filters = new Filters(() => this.applyFilters());
    this.sheet = new Sheet();
    this.tip = new Tip();
    this.build(page);
    this.scatter = new Scatter(this.plot, {
      onHover: (row, x, y) => this.hover(row, x, y),
      onPick: row => go(pageOf(run, "moment", `${this.idOf(row)}?at=${encodeURIComponent(this.survey.source)}`)),
      onSelect: rows => {
        this.setSelecting(false);
        this.showSheet(rows, "No points inside the lasso");
      },
      onDrawn: () => this.setDrawn(),
    });
    this.plot.append(this.tip.element);
    this.redraw = () => this.scatter.draw();
    addEventListener("theme", this.redraw);
  }

  build(page) {
    const { filters } = this;
    this.count = h("span.muted.small", { "aria-live": "polite" });
    this.plot = h("div.scatter", {});
    const axis = side => h("label.axis", {}, `${side}-axis`, this.axisChoice(side));
    const hint = matchMedia("(pointer: coarse)").matches ? BY_TOUCH : BY_MOUSE;
    replace(
      page,
      heading(this.facts, null, this.buildSources()),
      tabs(this.run, "map"),
      h("div.toolbar", {}, axis("x"), axis("y"), filters.legend.element),
      h("div.toolbar", {}, filters.button, filters.element, h("span.grow", {}), this.buildTools()),
      this.plot,
      h("p.muted.small", {}, this.count, hint),
      this.sheet.element,
    );
  }

  buildSources() {
    const label = "Where the transitions are read from";
    this.sources = h("select", { "aria-label": label, onchange: () => this.load(this.sources.value) });
    const follow = h("input", { type: "checkbox", onchange: event => this.setFollowing(event.target.checked) });
    this.follow = h("label.check", { title: "Read the running replay again every 8 seconds" }, follow, "Follow");
    return [this.sources, this.follow];
  }

  buildTools() {
    const select = {
      "aria-pressed": "false",
      title: "Draw around points (or drag with Shift)",
      onclick: () => this.setSelecting(!this.scatter.isSelecting),
    };
    const sheet = {
      title: "Thumbnails of all points in view",
      onclick: () => this.showSheet(this.scatter.rowsInView(), "No points in view"),
    };
    const reset = { title: "Show everything (double click)", onclick: () => this.scatter.reset() };
    this.lasso = h("button", select, icon("lasso"), "Lasso");
    return [this.lasso, h("button", sheet, icon("grid"), "Contact sheet"), h("button", reset, icon("reset"), "Reset")];
  }

  axisChoice(side) {
    const options = Object.entries(AXIS_NAMES).map(([value, text]) => h("option", { value }, text));
    const change = () => {
      this.axes[side] = choice.value;
      this.place({});
    };
    const choice = h("select", { "aria-label": `${side}-axis`, onchange: change }, options);
    choice.value = this.axes[side];
    return choice;
  }

  idOf(row) {
    return String(this.survey.columns.identity[row]);
  }

  /** Show a survey; `cache` has its axes that are known. */
  take(survey, cache = {}) {
    const isFollowed = survey.source === this.survey?.source && this.isComplete && survey.rows <= MOST_FOLLOWED;
    const before = isFollowed ? { survey: this.survey, x: this.scatter.x.places, y: this.scatter.y.places } : null;
    this.survey = survey;
    this.cache = cache;
    this.drawn = new Promise(resolve => {
      this.setDrawn = resolve;
    });
    this.hover(-1);
    this.scatter.setPoints(survey.columns.look);
    this.scatter.shown = this.filters.accepted(survey);
    this.place({ keepView: true, from: before && this.movedFrom(before), animate: before !== null });
    this.scatter.gestures.hoverAgain();
    this.filters.legend.draw(survey);
    this.drawSources();
    this.describe();
  }

  get isComplete() {
    return this.survey.rows === this.survey.surveyed;
  }

  /** Once a part of a large replay is drawn, show all of it; `reported(name)` lets a measurement find both times. */
  async complete(reported) {
    await this.drawn;
    reported("map");
    await idle();
    if (!this.isComplete && !this.hasLeft) await this.load(this.survey.source);
    await this.drawn;
    if (this.isComplete) reported("wholeMap");
  }

  /** Where the transitions that were on the map before were then; new ones appear in place. */
  movedFrom({ survey, x, y }) {
    const rows = new Map();
    survey.columns.identity.forEach((id, row) => rows.set(id, row));
    const before = Array.from(this.survey.columns.identity, id => rows.get(id));
    const moved = (places, then) => places.map((place, row) => (before[row] === undefined ? place : then[before[row]]));
    return [moved(this.axis("x").places, x), moved(this.axis("y").places, y)];
  }

  /** The names of the actions, which an emulator process reports later than the survey. */
  nameActions(names) {
    this.actions = names;
    this.filters.actions.setNames(names);
  }

  drawSources() {
    const live = this.facts.sources.includes("live") ? ["live"] : [];
    const labels = [...new Set([...live, this.survey.source, ...this.facts.sources])];
    const text = label =>
      label === "live" ? `Running replay, t = ${whole(this.survey.t)}` : `Checkpoint t = ${whole(Number(label))}`;
    replace(
      this.sources,
      labels.map(label => h("option", { value: label }, text(label))),
    );
    this.sources.value = this.survey.source;
    this.follow.hidden = !labels.includes("live");
    const box = this.follow.querySelector("input");
    if (this.survey.source !== "live" && box.checked) {
      box.checked = false;
      this.setFollowing(false);
    }
  }

  applyFilters() {
    this.scatter.setShown(this.filters.accepted(this.survey));
    this.describe();
  }

  describe() {
    const { survey } = this,
      all = countText(survey),
      shown = this.scatter.shown.reduce((sum, one) => sum + one, 0);
    const part = shown < survey.rows ? `${whole(shown)} shown of ` : "";
    const rest = this.isComplete ? "" : "; loading the others";
    this.count.textContent = survey.rows ? `${part}${all}${rest}. ` : "The replay is empty. ";
    this.scatter.over.setAttribute("aria-label", `Map of ${all}. The arrow keys move it, + and − zoom.`);
  }

  axis(side) {
    const name = this.axes[side];
    return (this.cache[name] ??= axisOf(this.survey, name, this.facts));
  }

  place(options) {
    this.scatter.setAxes(this.axis("x"), this.axis("y"), options);
  }

  /** Show another source; if the run has ended, its newest checkpoint. */
  async load(at) {
    this.loading?.abort();
    const loading = (this.loading = new AbortController());
    await attempt(async () => {
      try {
        await this.read(at, loading.signal);
      } catch (error) {
        if (loading.signal.aborted) return;
        this.facts = await json(runUrl(this.run, "facts"));
        this.drawSources();
        if (at !== "live" || this.facts.sources[0] === "live") throw error;
        await this.read("", loading.signal);
        notice("The run has ended. This is its newest checkpoint.");
      }
    });
    if (this.loading === loading) this.loading = null;
  }

  /** Read a source and show it. What takes long is done piece by piece, so that it does not delay the pointer. */
  async read(at, signal) {
    const survey = await surveyOf(this.run, at, { signal }),
      cache = {};
    for (const name of Object.values(this.axes)) {
      await idle();
      cache[name] = axisOf(survey, name, this.facts);
    }
    await idle();
    if (!signal.aborted) this.take(survey, cache);
  }

  setFollowing(on) {
    clearInterval(this.timer);
    if (!on) return;
    this.load("live");
    this.timer = setInterval(() => {
      if (!document.hidden && !this.loading) this.load("live");
    }, FOLLOW_EVERY);
  }

  setSelecting(on) {
    this.scatter.isSelecting = on;
    this.lasso.setAttribute("aria-pressed", String(on));
    this.plot.classList.toggle("selecting", on);
  }

  /** Show the frames of the point under the pointer, and what is known of it; nothing for -1. */
  hover(row, x, y) {
    if (row >= 0 && row === this.hovered) return;
    this.hovered = row;
    clearTimeout(this.resting);
    if (row < 0) {
      this.tip.hide();
      return;
    }
    warmUp(this.run); // whoever points at a moment may open it
    const id = this.idOf(row),
      at = encodeURIComponent(this.survey.source);
    const image = h("img", { alt: "", decoding: "async" });
    image.onerror = () => image.remove();
    image.onload = () => this.tip.place(this.scatter, x, y);
    this.resting = setTimeout(() => {
      image.src = runUrl(this.run, `strip/${id}.png?at=${at}`);
    }, REST);
    const facts = factsOf(this.survey, row, this.actions);
    this.tip.show([h("div.film", {}, image), ...facts, h("p.muted.small", {}, `Moment ${id}`)], this.scatter, x, y);
  }

  showSheet(rows, empty) {
    const { actions, run, survey } = this;
    this.sheet.show({ run, survey, actions, rows, empty });
  }

  leave() {
    this.hasLeft = true;
    this.loading?.abort();
    this.filters.leave();
    clearInterval(this.timer);
    clearTimeout(this.resting);
    removeEventListener("theme", this.redraw);
    this.scatter.close();
  }
}
