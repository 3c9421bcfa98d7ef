// Which keys stand for which actions.

import { h } from "./dom.js";

const KEYS = {
  ArrowUp: "up",
  ArrowDown: "down",
  ArrowLeft: "left",
  ArrowRight: "right",
  " ": "fire",
  w: "up",
  s: "down",
  a: "left",
  d: "right",
};
const SYMBOLS = { up: "↑", down: "↓", left: "←", right: "→", fire: "Space" };

/** Keys that are commands rather than actions. */
export const COMMANDS = {
  p: "play or pause",
  ".": "next step",
  ",": "previous frame",
  t: "take over or hand back",
  b: "continue from this frame",
};

export class Keyboard {
  /** The keys of an action are the directions in its name, or a digit if it has none. */
  constructor(actions) {
    this.keys = actions.map((name, action) => {
      const word = name.toLowerCase();
      const held = ["up", "down", "left", "right", "fire"].filter(part => word.includes(part));
      const hasDigit = !held.length && !["noop", "none"].includes(word) && action < 9;
      return { held, digit: hasDigit ? String(action + 1) : null };
    });
    this.release();
  }

  /** The keys of an action as text. */
  textOf(action) {
    const { held, digit } = this.keys[action];
    return digit ?? (held.length ? held.map(key => SYMBOLS[key]).join("") : "no key");
  }

  /** A button for an action; `onTouch` is called with the action while it is held, and with null after that. */
  button(name, action, onTouch) {
    const touch = held => event => {
      event.preventDefault();
      onTouch(held);
    };
    const handlers = {
      onpointerdown: touch(action),
      onpointerup: touch(null),
      onpointercancel: touch(null),
      onpointerleave: touch(null),
      oncontextmenu: event => event.preventDefault(),
    };
    return h("button.key", handlers, h("kbd", {}, this.textOf(action)), name);
  }

  /** Note that a key was pressed or released; return whether it belongs to an action. */
  press({ key }, isDown) {
    const digit = this.keys.findIndex(one => one.digit === key);
    const name = KEYS[key] ?? KEYS[key.toLowerCase()] ?? (digit >= 0 ? `digit ${digit}` : null);
    if (!name) return false;
    if (isDown) this.pressed.add(name);
    else this.pressed.delete(name);
    return true;
  }

  /** Note which action's button is held; null for none. */
  touch(action) {
    this.touched = action;
  }

  release() {
    this.pressed = new Set();
    this.touched = null;
  }

  /** The action of the button that is held, or of the largest part of the pressed keys that is an action; or null. */
  get action() {
    if (this.touched !== null) return this.touched;
    let best = null,
      most = 0;
    for (const [action, { held, digit }] of this.keys.entries()) {
      const keys = digit ? [`digit ${action}`] : held;
      if (keys.length > most && keys.every(key => this.pressed.has(key))) {
        best = action;
        most = keys.length;
      }
    }
    return best;
  }
}
