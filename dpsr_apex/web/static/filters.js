// Which transitions of the map are shown: by kind, reward, end and action.

import { h, replace, short } from "./dom.js";
import { isRecycled, isTerminal, kindOf, KINDS, kindText } from "./survey.js";

/** Filters besides kinds and actions: their values, and whether a row has a value. */
const FILTERS = {
  recycled: {
    label: "Recycled",
    values: ["yes", "no"],
    accepts: (value, { look }, row) => isRecycled(look[row]) === (value === "yes"),
  },
  reward: {
    label: "Reward",
    values: ["> 0", "= 0", "< 0"],
    accepts: (value, { reward }, row) => Math.sign(reward[row]) === { "> 0": 1, "= 0": 0, "< 0": -1 }[value],
  },
  terminal: {
    label: "Terminal",
    values: ["yes", "no"],
    accepts: (value, { look }, row) => isTerminal(look[row]) === (value === "yes"),
  },
};

/** A dot in the colour of a kind, or a diamond. */
export const dot = (kind, isDiamond) =>
  h(`i.dot${isDiamond ? ".diamond" : ""}`, { style: { "--dot": `var(${KINDS[kind].colour})` } });

/** The kinds of transitions, each of which can be hidden. */
export class Legend {
  constructor(onChange) {
    this.onChange = onChange;
    this.wanted = new Set(KINDS.keys());
    this.element = h("div.chips", { role: "group", "aria-label": "Kinds of transitions" });
  }

  draw(survey) {
    replace(
      this.element,
      KINDS.map((kind, place) => this.chip(kind, place, survey)),
    );
  }

  chip({ hint }, kind, survey) {
    const text = kindText(survey, kind);
    if (!text) return null;
    const press = event => {
      toggle(this.wanted, kind);
      event.currentTarget.setAttribute("aria-pressed", String(this.wanted.has(kind)));
      this.onChange();
    };
    const attributes = { "aria-pressed": String(this.wanted.has(kind)), title: hint, onclick: press };
    return h("button.chip", attributes, dot(kind, kind === 1), text, h("span.muted", {}, short(survey.kinds[kind])));
  }

  /** The condition that rows must meet; null if all kinds are shown. */
  condition({ look }) {
    const wanted = KINDS.map((_, kind) => this.wanted.has(kind));
    return wanted.includes(false) ? row => wanted[kindOf(look[row])] : null;
  }
}

/** The actions, each of which can be hidden; their names may be known later than their number. */
class Actions {
  constructor(onChange) {
    this.onChange = onChange;
    this.chips = h("div.chips", { role: "group", "aria-label": "Actions" });
    this.caption = h("summary", { "aria-label": "Actions" });
    this.element = h("details.pick", {}, this.caption, this.chips);
    this.close = event => {
      const isElsewhere = event.type === "keydown" ? event.key === "Escape" : !this.element.contains(event.target);
      if (isElsewhere) this.element.open = false;
    };
    addEventListener("pointerdown", this.close);
    addEventListener("keydown", this.close);
    this.setNames([]);
  }

  setNames(names) {
    if (!this.names || this.wanted.size === this.names.length) this.wanted = new Set(names.keys());
    this.names = names;
    this.draw();
  }

  draw() {
    const { names, wanted } = this;
    const chip = (name, action) =>
      h("button.chip", { "aria-pressed": String(wanted.has(action)), onclick: () => this.toggle([action]) }, name);
    const all = () =>
      this.toggle([...names.keys()].filter(action => wanted.has(action) === (wanted.size === names.length)));
    replace(this.chips, names.map(chip), h("button.chip.quiet", { onclick: all }, "all / none"));
    this.describe();
  }

  toggle(actions) {
    for (const action of actions) toggle(this.wanted, action);
    for (const [action, chip] of [...this.chips.children].entries()) {
      if (action < this.names.length) chip.setAttribute("aria-pressed", String(this.wanted.has(action)));
    }
    this.describe();
    this.onChange();
  }

  describe() {
    const chosen = this.names.filter((_, action) => this.wanted.has(action)),
      count = this.names.length;
    const few = chosen.length < 3 ? chosen.join(", ") || "none" : `${chosen.length} of ${count}`;
    this.caption.textContent = chosen.length === count ? "any" : few;
  }

  /** The condition that rows must meet; null if all actions are shown. */
  condition({ action }) {
    return this.wanted.size < this.names.length ? row => this.wanted.has(action[row]) : null;
  }

  leave() {
    removeEventListener("pointerdown", this.close);
    removeEventListener("keydown", this.close);
  }
}

export class Filters {
  /** `onChange()` is called when other rows are accepted than before. */
  constructor(onChange) {
    this.legend = new Legend(onChange);
    this.actions = new Actions(onChange);
    this.choices = Object.entries(FILTERS).map(([name, { label, values }]) => {
      const options = ["any", ...values].map((text, place) => h("option", { value: place ? text : "" }, text));
      return [name, h("select", { "aria-label": label, onchange: onChange }, options)];
    });
    const labels = this.choices.map(([name, select]) => h("label", {}, FILTERS[name].label, select));
    this.element = h("div.filters", {}, labels, h("span.field", {}, "Action", this.actions.element));
    const press = () => this.button.setAttribute("aria-expanded", String(this.element.classList.toggle("open")));
    this.button = h("button.narrow", { "aria-expanded": "false", onclick: press }, "Filters"); // on a narrow screen
  }

  /** Which rows all filters accept: 1 or 0 for each. */
  accepted({ columns, rows }) {
    const conditions = this.choices
      .filter(([, select]) => select.value)
      .map(
        ([name, select]) =>
          row =>
            FILTERS[name].accepts(select.value, columns, row),
      );
    conditions.push(...[this.legend.condition(columns), this.actions.condition(columns)].filter(Boolean));
    const accepted = new Uint8Array(rows);
    if (!conditions.length) return accepted.fill(1);
    for (let row = 0; row < rows; row++) accepted[row] = conditions.every(accepts => accepts(row)) ? 1 : 0;
    return accepted;
  }

  leave() {
    this.actions.leave();
  }
}

const toggle = (set, value) => (set.has(value) ? set.delete(value) : set.add(value));
