// The contact sheet: selected transitions of the map as thumbnails, in a selectable order.

import { counted, h, icon, number, pageOf, replace, runUrl } from "./dom.js";
import { isRecycled, kindOf, KINDS } from "./survey.js";

const AT_ONCE = 60; // cards
const ORDERS = { "highest priority": ["priority", -1], "lowest priority": ["priority", 1], "largest gain": ["gain", -1], "largest reward": ["reward", -1], youngest: ["age", 1], "earliest in the episode": ["position", 1] };

/** Fill `element` with the sheet of some rows of a survey, and show it. */
export function showSheet(element, { run, survey, actions, rows, empty }) {
  const { columns, source } = survey, cards = h("div.cards-grid", {});
  let order = "highest priority", shown = AT_ONCE;
  const more = h("button", { onclick: () => { shown += AT_ONCE; draw(); } });
  const choice = h("select", { "aria-label": "Order", onchange: () => { order = choice.value; draw(); } }, Object.keys(ORDERS).map(name => h("option", {}, name)));
  const close = h("button.quiet.round", { title: "Close", "aria-label": "Close the contact sheet", onclick: () => { element.hidden = true; } }, icon("close"));

  function card(row) {
    const id = String(columns.identity[row]), url = `${id}?at=${encodeURIComponent(source)}`, action = actions[columns.action[row]] ?? `action ${columns.action[row]}`;
    const image = h("img", { src: runUrl(run, `thumb/${id}.png?at=${encodeURIComponent(source)}`), alt: `Moment ${id}, ${action}`, loading: "lazy", decoding: "async" });
    image.onerror = () => image.classList.add("missing");
    return h("a.thumb", { href: pageOf(run, "moment", url) }, image,
      h("span", {}, h(`i.dot${isRecycled(columns.look[row]) ? ".diamond" : ""}`, { style: { "--dot": `var(${KINDS[kindOf(columns.look[row])].colour})` } }), action),
      h("span.muted", {}, `priority ${number(columns.priority[row], 3)}`));
  }

  function draw() {
    const [name, sign] = ORDERS[order], column = columns[name];
    const value = row => Number.isNaN(column[row]) ? Infinity : sign * column[row];
    const sorted = rows.slice().sort((one, other) => value(one) - value(other) || one - other);
    replace(cards, sorted.slice(0, shown).map(card));
    more.hidden = rows.length <= shown;
    more.textContent = `Show ${Math.min(AT_ONCE, rows.length - shown)} more`;
  }

  element.hidden = false;
  replace(element, h("div.bar", {}, h("h2", {}, rows.length ? counted(rows.length, "transition") : empty), rows.length ? [h("span.muted", {}, "sorted by"), choice] : null, h("span.grow", {}), close),
    h("p.muted.small", { hidden: !rows.length }, "Above: the state. Below: the next state, with changes highlighted."), cards, more);
  draw();
  element.scrollIntoView({ behavior: "smooth", block: "nearest" });
}
