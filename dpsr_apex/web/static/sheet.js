// The contact sheet: selected transitions of the map as thumbnails, in a selectable order.

import { counted, h, icon, number, pageOf, replace, runUrl } from "./dom.js";
import { dot } from "./filters.js";
import { isRecycled, kindOf } from "./survey.js";

const AT_ONCE = 60; // cards
const ORDERS = {
  "highest priority": ["priority", -1],
  "lowest priority": ["priority", 1],
  "largest gain": ["gain", -1],
  "largest reward": ["reward", -1],
  youngest: ["age", 1],
  "earliest in the episode": ["position", 1],
};

export class Sheet {
  constructor() {
    this.element = h("section.sheet", { hidden: true });
    this.cards = h("div.cards-grid", {});
    this.more = h("button", { onclick: () => this.draw(this.count + AT_ONCE) });
    const options = Object.keys(ORDERS).map(name => h("option", {}, name));
    this.order = h("select", { "aria-label": "Order", onchange: () => this.draw(this.count) }, options);
  }

  /** Show some rows of a survey, or the text `empty` if there are none. */
  show({ run, survey, actions, rows, empty }) {
    Object.assign(this, { run, survey, actions, rows });
    const hide = () => {
      this.element.hidden = true;
    };
    const close = { title: "Close", "aria-label": "Close the contact sheet", onclick: hide };
    replace(
      this.element,
      h(
        "div.bar",
        {},
        h("h2", {}, rows.length ? counted(rows.length, "transition") : empty),
        rows.length ? [h("span.muted", {}, "sorted by"), this.order] : null,
        h("span.grow", {}),
        h("button.quiet.round", close, icon("close")),
      ),
      h(
        "p.muted.small",
        { hidden: !rows.length },
        "Above: the state. Below: the next state, with changes highlighted.",
      ),
      this.cards,
      this.more,
    );
    this.element.hidden = false;
    this.draw(AT_ONCE);
    this.element.scrollIntoView({ behavior: "smooth", block: "nearest" });
  }

  /** Show the first `count` cards. */
  draw(count) {
    this.count = count;
    const { rows } = this,
      [name, sign] = ORDERS[this.order.value],
      column = this.survey.columns[name];
    const value = row => (Number.isNaN(column[row]) ? Infinity : sign * column[row]);
    const sorted = rows.slice().sort((one, other) => value(one) - value(other) || one - other);
    replace(
      this.cards,
      sorted.slice(0, count).map(row => this.card(row)),
    );
    this.more.hidden = rows.length <= count;
    this.more.textContent = `Show ${Math.min(AT_ONCE, rows.length - count)} more`;
  }

  card(row) {
    const { columns, source } = this.survey,
      look = columns.look[row];
    const id = String(columns.identity[row]),
      at = encodeURIComponent(source);
    const action = this.actions[columns.action[row]] ?? `action ${columns.action[row]}`;
    const image = h("img", {
      src: runUrl(this.run, `thumb/${id}.png?at=${at}`),
      alt: `Moment ${id}, ${action}`,
      loading: "lazy",
      decoding: "async",
    });
    image.onerror = () => image.classList.add("missing");
    return h(
      "a.thumb",
      { href: pageOf(this.run, "moment", `${id}?at=${at}`) },
      image,
      h("span", {}, dot(kindOf(look), isRecycled(look)), action),
      h("span.muted", {}, `priority ${number(columns.priority[row], 3)}`),
    );
  }
}
