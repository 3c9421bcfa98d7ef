// What the agent expects of each action, as bars; with quantiles where it has them.

import { h, replace, signed, svg } from "./dom.js";

/** Bars of Q-values, in place: built once, then updated at every frame. */
export class Values {
  constructor(actions) {
    this.actions = actions;
    this.rows = actions.map(name => {
      const bar = h("i", {}),
        value = h("span.figure", {}),
        box = h("div.bar-track", {}, bar);
      return { row: h("div.value", {}, h("span.name", { title: name }, name), box, value), bar, value, box };
    });
    this.element = h(
      "div.values",
      {},
      this.rows.map(one => one.row),
    );
  }

  /** Show values; `taken` is the action that follows, or that is stored. */
  show(values, { taken = null, quantiles = null } = {}) {
    const all = quantiles ? quantiles.flatMap(one => [one[0], one.at(-1)]) : values,
      greedy = values.indexOf(Math.max(...values));
    let low = Math.min(...all),
      high = Math.max(...all);
    const space = (high - low || Math.abs(high) || 1) * 0.06;
    low -= space;
    high += space;
    const place = value => (100 * (value - low)) / (high - low);
    for (const [action, { row, bar, value, box }] of this.rows.entries()) {
      bar.style.width = `${Math.max(place(values[action]), 0.5)}%`;
      value.textContent = signed(values[action], 3);
      row.classList.toggle("greedy", action === greedy);
      row.classList.toggle("taken", action === taken);
      if (quantiles) replace(box, spread(quantiles[action], place, values[action]));
    }
  }
}

/** The distribution of a return: all quantiles as ticks, the middle half as a box, the mean as a line. */
function spread(quantiles, place, mean) {
  const at = share => quantiles[Math.min(Math.floor(share * quantiles.length), quantiles.length - 1)];
  const x = value => place(value).toFixed(2),
    width = (one, other) => Math.max(place(other) - place(one), 0.3).toFixed(2);
  return svg(
    "svg",
    { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "spread" },
    svg("rect", { x: x(at(0.05)), width: width(at(0.05), at(0.95)), y: 4.2, height: 1.6, class: "whisker" }),
    svg("rect", { x: x(at(0.25)), width: width(at(0.25), at(0.75)), y: 1.8, height: 6.4, class: "box" }),
    svg("rect", { x: x(mean), width: 0.7, y: 0.6, height: 8.8, class: "mean" }),
  );
}
