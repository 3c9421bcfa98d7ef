// The choice of another agent to compare with: other weights of this run, or another run of the same environment.

import { h, listen, replace } from "./dom.js";

const MOST = 100; // other runs

export class Companions {
  /** `onFocus()` is called before a choice is made, `onChoose(run, weights, name)` when it is. */
  constructor({ run, facts, onFocus, onChoose }) {
    Object.assign(this, { run, facts, onChoose });
    this.others = [];
    this.element = h("select", { "aria-label": "Compare with", onfocus: onFocus, onchange: () => this.choose() });
    this.fill();
    const runs = [];
    this.leave = listen("/api/runs", event => {
      const others = event.lines.filter(line => line.environment === facts.environment && line.run !== run);
      runs.push(...others.map(line => line.run));
      if (!event.complete) return;
      this.leave();
      this.others = runs;
      this.fill();
    });
  }

  fill() {
    const option = (text, ...value) => h("option", { value: JSON.stringify(value) }, text);
    const own = this.facts.weights.map(one => option(one.label, this.run, one.key));
    const others = this.others.slice(0, MOST).map(run => option(run, run, ""));
    replace(
      this.element,
      h("option", { value: "" }, "Compare with…"),
      h("optgroup", { label: "This run" }, own),
      others.length ? h("optgroup", { label: "Newest weights of another run" }, others) : null,
    );
  }

  choose() {
    if (!this.element.value) return;
    const [run, weights] = JSON.parse(this.element.value);
    const name = run === this.run ? this.element.selectedOptions[0].textContent : run;
    this.element.value = "";
    this.onChoose(run, weights, name);
  }
}
