// The map: every stored transition as a point, from a checkpoint or from the running replay.

import { attempt, counted, css, fetched, h, icon, idle, json, notice, number, pageOf, replace, rgb, runUrl, short, signed, whole } from "./dom.js";
import { go } from "./app.js";
import { warmUp } from "./moment.js";
import { heading, tabs } from "./run.js";
import { Scatter } from "./scatter.js";
import { showSheet } from "./sheet.js";
import { AXES, AXIS_NAMES, countText, extent, isRecycled, isTerminal, kindOf, KINDS, kindText, places, readSurvey } from "./survey.js";

const FIRST = 50_000; // transitions of a larger replay that are shown at first
const FOLLOW_EVERY = 8000; // milliseconds
const MOST_FOLLOWED = 200_000; // transitions of which each is followed from one survey to the next
const BY_MOUSE = "Each point is a stored transition: hover over it to see its frames, click it to open it. Scroll to zoom, drag to pan, drag with Shift to select several.";
const BY_TOUCH = "Each point is a stored transition: tap it to see its frames, tap it again to open it. Pinch to zoom, drag to pan.";

/** Filters besides the kinds: which values they have, and which rows they accept. */
const FILTERS = {
  recycled: { label: "Recycled", values: ["yes", "no"], accepts: (value, { look }) => row => isRecycled(look[row]) === (value === "yes") },
  reward: { label: "Reward", values: ["> 0", "= 0", "< 0"], accepts: (value, { reward }) => row => Math.sign(reward[row]) === { "> 0": 1, "= 0": 0, "< 0": -1 }[value] },
  terminal: { label: "Terminal", values: ["yes", "no"], accepts: (value, { look }) => row => isTerminal(look[row]) === (value === "yes") },
};

export async function showMap(page, { run, stillHere }) {
  const began = performance.now();
  const [facts, survey] = await Promise.all([json(runUrl(run, "facts")), surveyOf(run, "", { most: FIRST })]);
  if (!stillHere()) return undefined;
  const view = new MapView(page, run, facts);
  view.take(survey);
  view.drawActions(Array.from({ length: (survey.ranges.action?.[1] ?? -1) + 1 }, (_, action) => `action ${action}`));
  const environment = json(runUrl(run, "environment"));
  attempt(async () => { const found = await environment; if (stillHere()) view.name(found); });
  view.complete(name => { document.documentElement.dataset[`${name}Milliseconds`] = String(Math.round(performance.now() - began)); });
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
    this.actions = [];
    this.axes = { x: "age", y: "priority" };
    this.kindsShown = new Set(KINDS.keys());
    this.actionsShown = null; // all
    this.filters = Object.fromEntries(Object.entries(FILTERS).map(([name, filter]) => [name, h("select", { "aria-label": filter.label, onchange: () => this.applyFilters() }, h("option", { value: "" }, "any"), filter.values.map(value => h("option", {}, value)))]));
    this.build(page);
    this.scatter = new Scatter(this.plot, {
      palette: () => KINDS.map(kind => rgb(css(kind.colour))),
      colours: () => ({ line: css("--line"), muted: css("--muted"), ink: css("--ink"), accent: css("--accent"), accentSoft: css("--accent-soft") }),
      onHover: (row, x, y) => this.hover(row, x, y),
      onPick: row => go(pageOf(run, "moment", `${this.idOf(row)}?at=${encodeURIComponent(this.survey.source)}`)),
      onSelect: rows => { this.setSelecting(false); this.showSheet(rows, "No points inside the lasso"); },
      onDrawn: () => this.setDrawn(),
    });
    this.plot.append(this.tip);
    this.redraw = () => this.scatter.draw();
    this.closePick = event => { if (event.type === "keydown" ? event.key === "Escape" : !this.actionPick.contains(event.target)) this.actionPick.open = false; };
    addEventListener("theme", this.redraw);
    addEventListener("pointerdown", this.closePick);
    addEventListener("keydown", this.closePick);
  }

  build(page) {
    const { facts, run } = this;
    this.sources = h("select", { "aria-label": "Where the transitions are read from", onchange: () => this.load(this.sources.value) });
    this.follow = h("label.check", { title: "Read the running replay again every 8 seconds" }, h("input", { type: "checkbox", onchange: event => this.setFollowing(event.target.checked) }), "Follow");
    this.lasso = h("button", { "aria-pressed": "false", title: "Draw around points (or drag with Shift)", onclick: () => this.setSelecting(!this.scatter.isSelecting) }, icon("lasso"), "Lasso");
    this.sheetButton = h("button", { title: "Thumbnails of all points in view", onclick: () => this.showSheet(this.scatter.rowsInView(), "No points in view") }, icon("grid"), "Contact sheet");
    this.filterButton = h("button.narrow", { "aria-expanded": "false", onclick: () => this.filterButton.setAttribute("aria-expanded", String(this.filterRow.classList.toggle("open"))) }, "Filters");
    this.legend = h("div.chips", { role: "group", "aria-label": "Kinds of transitions" });
    this.actionChips = h("div.chips", { role: "group", "aria-label": "Actions" });
    this.actionCaption = h("summary", { "aria-label": "Actions" });
    this.actionPick = h("details.pick", {}, this.actionCaption, this.actionChips);
    this.count = h("span.muted.small", { "aria-live": "polite" });
    this.filterRow = h("div.filters", {}, Object.entries(this.filters).map(([name, select]) => h("label", {}, FILTERS[name].label, select)), h("span.field", {}, "Action", this.actionPick));
    this.plot = h("div.scatter", {});
    this.tip = h("div.tip", { hidden: true });
    this.sheet = h("section.sheet", { hidden: true });
    replace(page,
      heading(facts, null, [this.sources, this.follow]), tabs(run, "map"),
      h("div.toolbar", {}, h("label.axis", {}, "x-axis", this.axisChoice("x")), h("label.axis", {}, "y-axis", this.axisChoice("y")), this.legend),
      h("div.toolbar", {}, this.filterButton, this.filterRow, h("span.grow", {}), this.lasso, this.sheetButton,
        h("button", { title: "Show everything (double click)", onclick: () => this.scatter.reset() }, icon("reset"), "Reset")),
      this.plot, h("p.muted.small", {}, this.count, matchMedia("(pointer: coarse)").matches ? BY_TOUCH : BY_MOUSE), this.sheet);
  }

  axisChoice(side) {
    const choice = h("select", { "aria-label": `${side}-axis`, onchange: () => { this.axes[side] = choice.value; this.place({}); } },
      Object.entries(AXIS_NAMES).map(([value, text]) => h("option", { value }, text)));
    choice.value = this.axes[side];
    return choice;
  }

  idOf(row) { return String(this.survey.columns.identity[row]); }

  /** Show a survey; `cache` has the places of its transitions on some axes. */
  take(survey, cache = {}) {
    const isFollowed = survey.source === this.survey?.source && this.isComplete && survey.rows <= MOST_FOLLOWED;
    const before = isFollowed ? { survey: this.survey, x: this.scatter.x.places, y: this.scatter.y.places } : null;
    this.survey = survey;
    this.cache = cache;
    this.drawn = new Promise(resolve => { this.setDrawn = resolve; });
    this.hover(-1);
    this.scatter.setPoints(survey.columns.look);
    this.scatter.shown = this.accepted();
    this.place({ keepView: true, from: before && this.movedFrom(before), animate: before !== null });
    this.scatter.hoverAgain();
    this.drawLegend();
    this.drawSources();
    this.describe();
  }

  get isComplete() { return this.survey.rows === this.survey.surveyed; }

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
    const rows = new Map(), identity = this.survey.columns.identity;
    survey.columns.identity.forEach((id, row) => rows.set(id, row));
    const moved = (places, then) => places.map((place, row) => { const before = rows.get(identity[row]); return before === undefined ? place : then[before]; });
    return [moved(this.placesOf("x"), x), moved(this.placesOf("y"), y)];
  }

  /** The names of the actions, which an emulator process reports later than the survey. */
  name(environment) {
    this.actions = environment.actions;
    this.drawActions(environment.actions);
  }

  drawActions(names) {
    this.actionsShown ??= new Set(names.keys());
    if (this.actionsShown.size === this.actionCount) this.actionsShown = new Set(names.keys()); // all, as before
    const chosen = this.actionsShown;
    const chip = (name, action) => h("button.chip", { "aria-pressed": String(chosen.has(action)), onclick: event => { toggle(chosen, action); event.currentTarget.setAttribute("aria-pressed", String(chosen.has(action))); this.captionActions(); this.applyFilters(); } }, name);
    this.actionCount = names.length;
    this.actionNames = names;
    replace(this.actionChips, names.map(chip), h("button.chip.quiet", { onclick: () => this.allActions(chosen.size < names.length) }, "all / none"));
    this.captionActions();
  }

  captionActions() {
    const chosen = [...this.actionsShown].sort((one, other) => one - other).map(action => this.actionNames[action]), count = this.actionCount;
    this.actionCaption.textContent = chosen.length === count ? "any" : !chosen.length ? "none" : chosen.length < 3 ? chosen.join(", ") : `${chosen.length} of ${count}`;
  }

  allActions(on) {
    this.actionsShown.clear();
    if (on) for (let action = 0; action < this.actionCount; action++) this.actionsShown.add(action);
    for (const chip of this.actionChips.querySelectorAll(".chip[aria-pressed]")) chip.setAttribute("aria-pressed", String(on));
    this.captionActions();
    this.applyFilters();
  }

  drawLegend() {
    const chip = (kind, place) => kindText(this.survey, place) && h("button.chip", { "aria-pressed": String(this.kindsShown.has(place)), title: kind.hint, style: { "--dot": `var(${kind.colour})` }, onclick: () => { toggle(this.kindsShown, place); this.drawLegend(); this.applyFilters(); } },
      h(`i.dot${place === 1 ? ".diamond" : ""}`, {}), kindText(this.survey, place), h("span.muted", {}, short(this.survey.kinds[place])));
    replace(this.legend, KINDS.map(chip));
  }

  drawSources() {
    const labels = [...new Set([...(this.facts.sources.includes("live") ? ["live"] : []), this.survey.source, ...this.facts.sources])];
    replace(this.sources, labels.map(label => h("option", { value: label }, label === "live" ? `Running replay, t = ${whole(this.survey.t)}` : `Checkpoint t = ${whole(Number(label))}`)));
    this.sources.value = this.survey.source;
    this.follow.hidden = !labels.includes("live");
    const box = this.follow.querySelector("input");
    if (this.survey.source !== "live" && box.checked) { box.checked = false; this.setFollowing(false); }
  }

  /** Which rows all filters accept: 1 or 0 for each. */
  accepted() {
    const { columns, rows } = this.survey, shown = new Uint8Array(rows), conditions = [];
    const wanted = KINDS.map((_, place) => this.kindsShown.has(place));
    if (wanted.includes(false)) conditions.push(row => wanted[kindOf(columns.look[row])]);
    if (this.actionsShown && this.actionsShown.size < this.actionCount) conditions.push(row => this.actionsShown.has(columns.action[row]));
    for (const [name, select] of Object.entries(this.filters)) if (select.value) conditions.push(FILTERS[name].accepts(select.value, columns));
    if (!conditions.length) return shown.fill(1);
    for (let row = 0; row < rows; row++) shown[row] = conditions.every(accepts => accepts(row)) ? 1 : 0;
    return shown;
  }

  applyFilters() {
    this.scatter.setShown(this.accepted());
    this.describe();
  }

  describe() {
    const { survey } = this, count = this.scatter.shown.reduce((sum, one) => sum + one, 0), all = countText(survey);
    const rest = survey.rows < survey.surveyed ? "; loading the others" : "";
    this.count.textContent = survey.rows ? `${count < survey.rows ? `${whole(count)} shown of ` : ""}${all}${rest}. ` : "The replay is empty. ";
    this.scatter.over.setAttribute("aria-label", `Map of ${all}. The arrow keys move it, + and − zoom.`);
  }

  placesOf(side) { return this.cache[this.axes[side]] ??= places(this.survey, this.axes[side], this.facts); }

  place(options) {
    const axis = side => ({ ...AXES[this.axes[side]], places: this.placesOf(side), extent: extent(this.survey, this.axes[side], this.facts) });
    this.scatter.setAxes(axis("x"), axis("y"), options);
  }

  /** Show another source. A run that has ended continues as its newest checkpoint; one that is gone is not offered again. */
  async load(at) {
    this.loading?.abort();
    const loading = this.loading = new AbortController();
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
    const survey = await surveyOf(this.run, at, { signal }), cache = {};
    for (const name of Object.values(this.axes)) {
      await idle();
      cache[name] = places(survey, name, this.facts);
    }
    await idle();
    if (!signal.aborted) this.take(survey, cache);
  }

  setFollowing(on) {
    clearInterval(this.timer);
    if (!on) return;
    this.load("live");
    this.timer = setInterval(() => { if (!document.hidden && !this.loading) this.load("live"); }, FOLLOW_EVERY);
  }

  setSelecting(on) {
    this.scatter.isSelecting = on;
    this.lasso.setAttribute("aria-pressed", String(on));
    this.plot.classList.toggle("selecting", on);
  }

  hover(row, x, y) {
    this.tip.hidden = row < 0;
    if (row < 0) { this.tipRow = -1; return; }
    if (this.tipRow === row) return;
    warmUp(this.run); // whoever points at a moment may open it
    this.tipRow = row;
    const { columns } = this.survey, id = this.idOf(row), gain = columns.gain[row], look = columns.look[row], recycled = isRecycled(look);
    const image = h("img", { alt: "", decoding: "async" });
    clearTimeout(this.tipTimer);
    this.tipTimer = setTimeout(() => { image.src = runUrl(this.run, `strip/${id}.png?at=${encodeURIComponent(this.survey.source)}`); }, 40);
    image.onerror = () => image.remove();
    image.onload = () => this.placeTip(x, y);
    replace(this.tip, h("div.film", {}, image),
      h("p", {}, h(`i.dot${recycled ? ".diamond" : ""}`, { style: { "--dot": `var(${KINDS[kindOf(look)].colour})` } }), h("b", {}, this.actions[columns.action[row]] ?? `action ${columns.action[row]}`), ` → reward ${number(columns.reward[row])}`, isTerminal(look) ? ", terminal" : ""),
      h("p.muted", {}, `priority ${number(columns.priority[row])} · age ${whole(columns.age[row])} · step ${whole(columns.position[row])} of its episode`),
      recycled ? h("p.muted", {}, `recycled, depth ${whole(columns.depth[row])}`, gain === gain ? ` · gain ${signed(gain)}` : "") : null,
      h("p.muted.small", {}, `Moment ${id}`));
    this.placeTip(x, y);
  }

  placeTip(x, y) {
    const half = this.tip.offsetWidth / 2;
    this.tip.style.left = `${Math.max(Math.min(x, this.scatter.width - half), half)}px`;
    this.tip.style.top = `${y}px`;
    this.tip.classList.toggle("below", y < this.scatter.height / 2);
  }

  showSheet(rows, empty) {
    showSheet(this.sheet, { run: this.run, survey: this.survey, actions: this.actions, rows, empty });
  }

  leave() {
    this.hasLeft = true;
    this.loading?.abort();
    clearInterval(this.timer);
    clearTimeout(this.tipTimer);
    removeEventListener("theme", this.redraw);
    removeEventListener("pointerdown", this.closePick);
    removeEventListener("keydown", this.closePick);
    this.scatter.close();
  }
}

const toggle = (set, value) => set.has(value) ? set.delete(value) : set.add(value);
