// The outcome of every action from a moment, side by side: what state recycling could store.

import { h, number, replace, signed } from "./dom.js";
import { picture } from "./wire.js";

const DIMMED = 0.42; // brightness of what is the same after every action

export class Tries {
  /** `onPick(action)` is called for the action that is to be played on from. */
  constructor(actions, onPick) {
    this.actions = actions;
    this.onPick = onPick;
    this.cards = h("div.tries", {});
    this.box = h("input", { type: "checkbox", checked: true, onchange: () => this.paint() });
    this.choice = h(
      "label.check",
      { hidden: true, title: "Dim what is the same after every action" },
      this.box,
      "Highlight differences",
    );
    this.element = h(
      "section.panel.every",
      {},
      h("div.bar", {}, h("h2", {}, "Every action from here"), h("span.grow", {}), this.choice),
      h(
        "p.muted.small",
        {},
        "One step with each action from this state, as in recycling: the next frame, the reward and |δ|. Click one to play on from there.",
      ),
      this.cards,
    );
    this.clear();
  }

  /** Show that nothing is known yet, or why not. */
  clear(reason = null) {
    this.pictures = [];
    this.choice.hidden = true;
    replace(
      this.cards,
      reason
        ? h("p.muted", {}, reason)
        : this.actions.map(name => h("div.try.waiting", {}, h("canvas", { width: 1, height: 1 }), h("b", {}, name))),
    );
  }

  async show(outcomes, parts) {
    const largest = Math.max(...outcomes.map(one => one.td_error)) || 1,
      images = await Promise.all(parts.map(picture));
    this.canvases = images.map(image => h("canvas", { width: image.width, height: image.height }));
    this.pictures = images;
    replace(
      this.cards,
      outcomes.map((one, place) => this.card(one, this.canvases[place], largest)),
    );
    this.choice.hidden = !this.paint();
  }

  card(one, canvas, largest) {
    const name = this.actions[one.action];
    return h(
      `button.try${one.is_stored ? ".stored" : ""}`,
      { title: `Continue with ${name}`, onclick: () => this.onPick(one.action) },
      canvas,
      h("span", {}, h("b", {}, name), one.is_stored ? h("span.muted", {}, " · stored") : null),
      h(
        "span",
        { class: one.score ? "gained" : "muted" },
        `reward ${one.score ? signed(one.score) : "0"}${one.terminal ? " · terminal" : ""}`,
      ),
      h("span.bar-track", {}, h("i", { style: { width: `${(100 * one.td_error) / largest}%` } })),
      h("span.muted", {}, `|δ| ${number(one.td_error, 3)}`),
    );
  }

  /** Draw the pictures; return whether they can be compared and differ. */
  paint() {
    const data = this.pictures.map((image, place) => {
      const context = this.canvases[place].getContext("2d", { willReadFrequently: true });
      context.drawImage(image, 0, 0);
      return context.getImageData(0, 0, image.width, image.height);
    });
    const [first, ...others] = data;
    if (!first || others.some(one => one.data.length !== first.data.length)) return false;
    const words = data.map(one => new Uint32Array(one.data.buffer)),
      isSame = new Uint8Array(words[0].length);
    for (let place = 0; place < isSame.length; place++)
      isSame[place] = words.every(one => one[place] === words[0][place]) ? 1 : 0;
    const differs = isSame.includes(0);
    if (differs && this.box.checked)
      data.forEach((one, place) => {
        dim(one.data, isSame);
        this.canvases[place].getContext("2d").putImageData(one, 0, 0);
      });
    return differs;
  }
}

function dim(data, where) {
  for (let place = 0; place < where.length; place++)
    if (where[place]) for (let part = 4 * place; part < 4 * place + 3; part++) data[part] *= DIMMED;
}
