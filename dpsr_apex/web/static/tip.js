// What is shown about the point under the pointer.

import { h, number, replace, signed, whole } from "./dom.js";
import { dot } from "./filters.js";
import { isRecycled, isTerminal, kindOf } from "./survey.js";

/** The facts about a row of a survey. */
export function factsOf({ columns }, row, actions) {
  const gain = columns.gain[row],
    look = columns.look[row];
  const action = actions[columns.action[row]] ?? `action ${columns.action[row]}`;
  const outcome = ` → reward ${number(columns.reward[row])}${isTerminal(look) ? ", terminal" : ""}`;
  const place = `age ${whole(columns.age[row])} · step ${whole(columns.position[row])} of its episode`;
  const recycled = `recycled, depth ${whole(columns.depth[row])}${gain === gain ? ` · gain ${signed(gain)}` : ""}`;
  return [
    h("p", {}, dot(kindOf(look), isRecycled(look)), h("b", {}, action), outcome),
    h("p.muted", {}, `priority ${number(columns.priority[row])} · ${place}`),
    isRecycled(look) ? h("p.muted", {}, recycled) : null,
  ];
}

export class Tip {
  constructor() {
    this.element = h("div.tip", { hidden: true });
  }

  /** Show content beside a point of a scatter plot. */
  show(content, scatter, x, y) {
    this.element.hidden = false;
    replace(this.element, content);
    this.place(scatter, x, y);
  }

  place({ width, height }, x, y) {
    const half = this.element.offsetWidth / 2;
    this.element.style.left = `${Math.max(Math.min(x, width - half), half)}px`;
    this.element.style.top = `${y}px`;
    this.element.classList.toggle("below", y < height / 2);
  }

  hide() {
    this.element.hidden = true;
  }
}
