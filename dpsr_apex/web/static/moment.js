// One moment: what is stored, what the agent expects, the outcome of every action, and playing on.

import { attempt, change, counted, DASH, h, icon, json, notice, number, pageOf, replace, runUrl, signed, whole } from "./dom.js";
import { PlayPanel } from "./play.js";
import { tabs } from "./run.js";
import { KINDS } from "./survey.js";
import { Tries } from "./tries.js";
import { Values } from "./values.js";
import { paintHeat, picture, Wire } from "./wire.js";

// The connection is kept from one moment of a run to the next, because its process is ready.
let kept = null;

/** Start the emulator process of a run before it is needed. */
export const warmUp = run => { connection(run); };

/** End the connection, unless it is to this run. */
export function keepOnly(run) {
  if (kept && kept.run !== run) { kept.close(); kept = null; }
}

export async function showMoment(page, { run, id, session, query, stillHere }) {
  const began = performance.now(), at = query.get("at") ?? "";
  const wire = connection(run);
  wire.owner = null;
  wire.send("enter", { id, at, weights: query.get("weights") ?? "" });
  const [moment, facts, environment] = await Promise.all([json(runUrl(run, "moment", `${id}?at=${encodeURIComponent(at)}`)), json(runUrl(run, "facts")), json(runUrl(run, "environment"))]);
  if (!stillHere()) return undefined;
  const view = new MomentView(page, { run, id, at, moment, facts, environment, session, wire });
  wire.owner = view;
  for (const [head, parts] of wire.early.splice(0)) view.take(head, parts);
  requestAnimationFrame(() => { document.documentElement.dataset.momentMilliseconds = String(Math.round(performance.now() - began)); });
  return () => view.leave();
}

/** The connection of this run: the present one, or a new one. */
function connection(run) {
  if (kept?.run === run && !kept.ended) return kept;
  kept?.close();
  const wire = new Wire(runUrl(run, "play"),
    (head, parts) => { if (wire.owner) wire.owner.take(head, parts); else wire.early.push([head, parts]); },
    reason => { wire.ended = true; wire.owner?.ended(reason); });
  Object.assign(wire, { run, early: [], owner: null, ended: false });
  kept = wire;
  return wire;
}

addEventListener("pagehide", () => kept?.close());

class MomentView {
  constructor(page, given) {
    Object.assign(this, given);
    this.page = page;
    const { moment, environment } = this;
    this.values = new Values(environment.actions);
    this.valuesNote = h("p.muted.small", {});
    this.valuesStatus = h("p.small", {}, environment.restorable ? "The agent is being loaded…" : "");
    this.verified = h("p.verified", { hidden: true });
    this.tries = new Tries(environment.actions, action => { this.showPlay(); this.play.act(action); });
    this.saliency = h("canvas.saliency", { hidden: true });
    this.play = new PlayPanel({ ...given, onReady: () => this.ready(), onChoose: () => this.listWeights() });
    this.playButton = h("button.primary", { disabled: true, onclick: () => { this.showPlay(); this.play.start(); } }, icon("play"), "Play on");
    replace(page,
      h("div.bar", {}, h("h1", {}, `Moment ${this.id}`), this.marks(), h("span.grow", {}), this.playButton),
      h("p.subtitle", {}, `${this.facts.environment} · ${this.facts.method} · ${this.sourceText()}`),
      tabs(this.run, "map"),
      h("div.moment", {}, this.storedPanel(), h("div.side", {}, this.valuesPanel(), this.starPanel())), this.tries.element, this.play.element);
    this.draw();
    if (!environment.restorable) this.ended("This environment has no snapshot() and restore(), so its moments cannot be re-entered.");
  }

  /** What is special about the transition. */
  marks() {
    const { depth, reward, terminal } = this.moment, mark = (place, text) => h("span.chip.plain", { title: KINDS[place].hint, style: { "--dot": `var(${KINDS[place].colour})` } }, h(`i.dot${place === 1 ? ".diamond" : ""}`, {}), text);
    return [depth > 0 ? mark(1, "recycled") : mark(0, "played"), reward ? mark(2, `reward ${signed(reward)}`) : null, terminal ? mark(3, "terminal") : null];
  }

  /** The first frame is there: everything can be used, and every action is tried. */
  ready() {
    this.playButton.disabled = false;
    if (this.hasTried) return;
    this.hasTried = true;
    this.wire.send("try");
  }

  showPlay() {
    this.play.element.scrollIntoView({ behavior: "smooth", block: "center" });
  }

  sourceText() {
    const source = this.moment.source;
    return source === "live" ? "from the running replay" : source === "starred" ? "starred" : `from the checkpoint at t = ${whole(Number(source))}`;
  }

  storedPanel() {
    const { moment, environment } = this, action = environment.actions[moment.action] ?? `action ${moment.action}`;
    const frame = (data, label) => h("figure", {}, h("div.framed", {}, h("img.pixel", { src: `data:image/png;base64,${data}`, alt: label })), h("figcaption", {}, label));
    const earlier = moment.frames.length - 1;
    const newest = frame(moment.frames.at(-1), "now");
    newest.firstChild.append(this.saliency);
    const gap = moment.n_steps > 1 ? `after ${moment.n_steps} steps` : "next";
    const fact = (name, value, note) => h("div", {}, h("dt", {}, name), h("dd", {}, value, note ? h("span.muted", {}, ` ${note}`) : null));
    return h("section.panel.stored", {}, h("h2", {}, "What is stored"),
      h("div.filmstrip", {}, earlier ? h("div.earlier", {}, moment.frames.slice(0, -1).map((data, place) => frame(data, `${earlier - place} earlier`))) : null,
        h("div.step", {}, newest, h("div.arrow", {}, h("b", {}, action), h("span", { "aria-hidden": "true" }, "→"), h("span.muted", {}, `reward ${number(moment.reward)}`)), frame(moment.next.at(-1), moment.terminal ? "end" : gap))),
      this.vectorTable(),
      h("dl.facts", {},
        fact("Action", action), fact("Reward", number(moment.reward), moment.n_steps > 1 ? `over n = ${moment.n_steps} steps` : "n = 1"), fact("Priority", number(moment.priority)),
        fact("Age", whole(moment.age), "transitions"), fact("Inserted", `t = ${whole(moment.birth)}`), fact("Position in the episode", counted(moment.episode_step, "step")),
        fact("Lineage", this.lineage()), fact("Gain", moment.gain === null ? DASH : signed(moment.gain)), fact("Snapshot", moment.snapshot_bytes ? `${whole(moment.snapshot_bytes)} bytes` : "none")),
      this.verified);
  }

  lineage() {
    const { recycles, origin, depth } = this.moment;
    if (!depth) return "played by an actor";
    const from = origin === "-1" ? null : [recycles === 1 ? ", from " : ", the last time from ", h("a.link", { href: pageOf(this.run, "moment", `${origin}?at=${encodeURIComponent(this.moment.source)}`), title: "Open the transition whose state was re-entered, if it is still stored" }, origin)];
    return [recycles ? ["re-entered ", recycles === 1 ? "once" : `${recycles} times`, ...(from ?? [])] : "recycled", `; depth ${whole(depth)}`].flat();
  }

  vectorTable() {
    const { vectors } = this.moment;
    if (!vectors) return null;
    const [s, next] = vectors.map(stack => stack.at(-1));
    if (!Array.isArray(s) || s.length > 40) return null;
    return h("div.scroll", {}, h("table.vector", {}, h("tbody", {}, h("tr", {}, h("th", {}, "s"), s.map(value => h("td.figure", {}, number(value, 3)))), h("tr", {}, h("th", {}, "s′"), next.map(value => h("td.figure", {}, number(value, 3)))))));
  }

  valuesPanel() {
    const show = h("input", { type: "checkbox", onchange: () => { this.saliency.hidden = !show.checked || !this.heat; } });
    this.saliencyBox = h("label.check", { hidden: true, title: "How much the greedy action's value depends on each pixel: the greatest gradient over the stacked frames" }, show, "Saliency");
    this.weightsChoice = h("select", { "aria-label": "Weights", onfocus: () => this.listWeights(), onchange: () => this.enter(this.weightsChoice.value) });
    this.fillWeights();
    return h("section.panel", {}, h("div.bar", {}, h("h2", {}, "What the agent expects"), h("span.grow", {}), this.facts.weights.length ? this.weightsChoice : null), this.valuesStatus, this.values.element, this.valuesNote, this.saliencyBox);
  }

  fillWeights() {
    const chosen = this.weights?.key ?? this.facts.weights[0]?.key;
    replace(this.weightsChoice, this.facts.weights.map(one => h("option", { value: one.key }, one.label)));
    this.weightsChoice.value = chosen;
  }

  /** A running run saves weights, and removes older ones. */
  async listWeights() {
    const found = await attempt(() => json(runUrl(this.run, "facts")));
    if (!found || found.weights.map(one => one.key).join() === this.facts.weights.map(one => one.key).join()) return;
    this.facts.weights = found.weights;
    this.fillWeights();
    this.play.fillCompare();
  }

  starPanel() {
    const { moment, session } = this;
    if (!session.may_change) return moment.note ? h("section.panel", {}, icon("star"), moment.note) : null;
    this.note = h("textarea", { rows: 2, placeholder: "A note about this moment", maxLength: 2000, "aria-label": "Note" });
    this.note.value = moment.note ?? "";
    this.star = h("button", { onclick: () => this.toggleStar() });
    this.saveNote = h("button.quiet", { onclick: () => this.sendStar() }, "Save note");
    return h("section.panel", {}, h("div.star", {}, this.star, h("p.muted.small", {}, "Starred moments are kept, and can be exported as starting states."), this.note, this.saveNote));
  }

  draw() {
    if (!this.star) return;
    const starred = this.moment.note !== null;
    replace(this.star, icon("star"), starred ? "Starred" : "Star");
    this.star.setAttribute("aria-pressed", String(starred));
    this.note.hidden = this.saveNote.hidden = !starred;
  }

  toggleStar() {
    return this.moment.note === null ? this.sendStar() : attempt(async () => {
      await change(runUrl(this.run, "stars", this.id), "DELETE");
      this.moment.note = null;
      this.draw();
    });
  }

  sendStar() {
    return attempt(async () => {
      const wasStarred = this.moment.note !== null;
      await change(runUrl(this.run, "stars", this.id), "POST", { note: this.note.value, at: this.moment.source });
      this.moment.note = this.note.value;
      this.draw();
      if (wasStarred) notice("The note is saved.");
    });
  }

  enter(weights) {
    this.valuesStatus.textContent = "The agent is being loaded…";
    this.playButton.disabled = true;
    this.tries.clear();
    this.isEntered = this.hasTried = false;
    this.play.reset();
    this.wire.send("enter", { id: this.id, at: this.at, weights });
  }

  take(head, parts) {
    if (head.event === "verified") this.isEntered = head.identity === this.id;
    else if (!this.isEntered && !["weights", "problem", "crashed", "refused"].includes(head.event)) return; // of an earlier moment
    switch (head.event) {
      case "weights": this.takeWeights(head); break;
      case "verified": this.showVerified(head); break;
      case "expectation": this.showExpectation(head, parts); break;
      case "tried": this.tries.show(head.outcomes, parts); break;
      case "problem": this.takeProblem(head); break;
      case "crashed": case "refused": break; // the end follows
      default: this.play.take(head, parts);
    }
  }

  /** A running run may have saved weights since it was asked for them. */
  takeWeights(weights) {
    this.weights = weights;
    if (!weights.key || this.facts.weights.some(one => one.key === weights.key)) this.fillWeights();
    else this.listWeights();
  }

  showVerified({ text, is_exact: isExact }) {
    this.verified.hidden = false;
    this.verified.classList.toggle("bad", isExact === false);
    this.verified.classList.toggle("unknown", isExact === null);
    this.verified.textContent = `${isExact === null ? "" : isExact ? "✓ " : "✗ "}${text[0].toUpperCase()}${text.slice(1)}`;
  }

  takeProblem(head) {
    notice(head.reason, "bad");
    this.listWeights();
    if (head.about === "try") this.tries.clear(head.reason);
    if (!this.isEntered && ["enter", "open", undefined].includes(head.about)) this.ended(head.reason);
    else this.play.take(head, []);
  }

  showExpectation(head, parts) {
    const { actions } = this.environment, stored = this.moment.action;
    this.values.show(head.q, { taken: stored, quantiles: head.quantiles });
    const source = this.weights?.label ?? "an untrained network: the run has saved no weights yet";
    this.valuesStatus.textContent = `Greedy action: ${actions[head.greedy]}${head.greedy === stored ? ", as stored" : `; stored action: ${actions[stored]}`}. |δ| of this transition with these weights: ${number(head.td_error)}${this.facts.weights.length ? "" : ` (${source})`}.`;
    this.valuesNote.textContent = `Expected return of each action${head.quantiles ? ": the mean, with the middle 50 % (box) and 90 % (line) of the quantiles" : ""}. ● marks the stored action.`;
    if (parts.length) this.drawSaliency(parts[0]);
    else if (head.saliency) this.valuesNote.append(` Saliency of the components: ${head.saliency.map(one => number(one, 2)).join(", ")}.`);
  }

  async drawSaliency(bytes) {
    this.heat = await picture(bytes);
    paintHeat(this.saliency, this.heat);
    this.saliencyBox.hidden = false;
    this.saliency.hidden = !this.saliencyBox.querySelector("input").checked;
  }

  /** The emulator has ended: what is stored can still be seen. */
  ended(reason) {
    this.playButton.disabled = true;
    this.valuesStatus.textContent = reason;
    this.tries.clear(reason);
    this.play.end(reason, this.environment.restorable ? () => this.again() : null);
  }

  again() {
    this.wire = connection(this.run);
    this.wire.owner = this;
    this.play.wire = this.wire;
    this.enter(this.weightsChoice.value ?? "");
  }

  leave() {
    this.play.leave();
    if (this.wire.owner === this) {
      this.wire.owner = null;
      this.wire.early.length = 0;
      this.wire.send("pause");
    }
  }
}
