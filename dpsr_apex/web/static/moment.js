// One moment: what is stored, what the agent expects, the outcome of every action, and playing on.

import { connection } from "./connection.js";
import { attempt, change, h, icon, json, notice, number, replace, runUrl, whole } from "./dom.js";
import { tabs } from "./heading.js";
import { PlayPanel } from "./play.js";
import { marksOf, storedPanel } from "./stored.js";
import { Tries } from "./tries.js";
import { Values } from "./values.js";
import { paintHeat, picture } from "./wire.js";

export async function showMoment(page, { run, id, session, query, stillHere }) {
  const at = query.get("at") ?? "";
  const wire = connection(run);
  wire.owner = null;
  wire.send("enter", { id, at, weights: query.get("weights") ?? "" });
  const [moment, facts, environment] = await Promise.all([
    json(runUrl(run, "moment", `${id}?at=${encodeURIComponent(at)}`)),
    json(runUrl(run, "facts")),
    json(runUrl(run, "environment")),
  ]);
  if (!stillHere()) return undefined;
  const view = new MomentView(page, { run, id, at, moment, facts, environment, session, wire });
  wire.owner = view;
  for (const [head, parts] of wire.early.splice(0)) view.take(head, parts);
  return () => view.leave();
}

class MomentView {
  constructor(page, given) {
    Object.assign(this, given);
    const { moment, environment } = this;
    this.values = new Values(environment.actions);
    this.valuesNote = h("p.muted.small", {});
    this.valuesStatus = h("p.small", {}, environment.restorable ? "The agent is being loaded…" : "");
    this.verified = h("p.verified", { hidden: true });
    this.tries = new Tries(environment.actions, action => {
      this.showPlay();
      this.play.act(action);
    });
    this.saliency = h("canvas.saliency", { hidden: true });
    const stored = storedPanel(given, this.saliency, this.verified);
    this.play = new PlayPanel({ ...given, onReady: () => this.ready(), onChoose: () => this.listWeights() });
    this.playButton = h(
      "button.primary",
      {
        disabled: true,
        onclick: () => {
          this.showPlay();
          this.play.start();
        },
      },
      icon("play"),
      "Play on",
    );
    replace(
      page,
      h("div.bar", {}, h("h1", {}, `Moment ${this.id}`), marksOf(moment), h("span.grow", {}), this.playButton),
      h("p.subtitle", {}, `${this.facts.environment} · ${this.facts.method} · ${this.sourceText()}`),
      tabs(this.run, "map"),
      h("div.moment", {}, stored, h("div.side", {}, this.valuesPanel(), this.starPanel())),
      this.tries.element,
      this.play.element,
    );
    this.draw();
    if (!environment.restorable)
      this.ended("This environment has no snapshot() and restore(), so its moments cannot be re-entered.");
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
    return source === "live"
      ? "from the running replay"
      : source === "starred"
        ? "starred"
        : `from the checkpoint at t = ${whole(Number(source))}`;
  }

  valuesPanel() {
    const show = h("input", {
      type: "checkbox",
      onchange: () => {
        this.saliency.hidden = !show.checked || !this.heat;
      },
    });
    this.saliencyBox = h(
      "label.check",
      {
        hidden: true,
        title:
          "How much the greedy action's value depends on each pixel: the greatest gradient over the stacked frames",
      },
      show,
      "Saliency",
    );
    this.weightsChoice = h("select", {
      "aria-label": "Weights",
      onfocus: () => this.listWeights(),
      onchange: () => this.enter(this.weightsChoice.value),
    });
    this.fillWeights();
    return h(
      "section.panel",
      {},
      h(
        "div.bar",
        {},
        h("h2", {}, "What the agent expects"),
        h("span.grow", {}),
        this.facts.weights.length ? this.weightsChoice : null,
      ),
      this.valuesStatus,
      this.values.element,
      this.valuesNote,
      this.saliencyBox,
    );
  }

  fillWeights() {
    const chosen = this.weights?.key ?? this.facts.weights[0]?.key;
    replace(
      this.weightsChoice,
      this.facts.weights.map(one => h("option", { value: one.key }, one.label)),
    );
    this.weightsChoice.value = chosen;
  }

  /** A running run saves weights, and removes older ones. */
  async listWeights() {
    const found = await attempt(() => json(runUrl(this.run, "facts")));
    if (!found || found.weights.map(one => one.key).join() === this.facts.weights.map(one => one.key).join()) return;
    this.facts.weights = found.weights;
    this.fillWeights();
    this.play.companions.fill();
  }

  starPanel() {
    const { moment, session } = this;
    if (!session.may_change) return moment.note ? h("section.panel", {}, icon("star"), moment.note) : null;
    this.note = h("textarea", {
      rows: 2,
      placeholder: "A note about this moment",
      maxLength: 2000,
      "aria-label": "Note",
    });
    this.note.value = moment.note ?? "";
    this.star = h("button", { onclick: () => this.toggleStar() });
    this.saveNote = h("button.quiet", { onclick: () => this.sendStar() }, "Save note");
    return h(
      "section.panel",
      {},
      h(
        "div.star",
        {},
        this.star,
        h("p.muted.small", {}, "Starred moments are kept, and can be exported as starting states."),
        this.note,
        this.saveNote,
      ),
    );
  }

  draw() {
    if (!this.star) return;
    const starred = this.moment.note !== null;
    replace(this.star, icon("star"), starred ? "Starred" : "Star");
    this.star.setAttribute("aria-pressed", String(starred));
    this.note.hidden = this.saveNote.hidden = !starred;
  }

  toggleStar() {
    return this.moment.note === null
      ? this.sendStar()
      : attempt(async () => {
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
      case "weights":
        this.takeWeights(head);
        break;
      case "verified":
        this.showVerified(head);
        break;
      case "expectation":
        this.showExpectation(head, parts);
        break;
      case "tried":
        this.tries.show(head.outcomes, parts);
        break;
      case "problem":
        this.takeProblem(head);
        break;
      case "crashed":
      case "refused":
        break; // the end follows
      default:
        this.play.take(head, parts);
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
    const { actions } = this.environment,
      stored = this.moment.action;
    this.values.show(head.q, { taken: stored, quantiles: head.quantiles });
    const source = this.weights?.label ?? "an untrained network: the run has saved no weights yet";
    this.valuesStatus.textContent = `Greedy action: ${actions[head.greedy]}${head.greedy === stored ? ", as stored" : `; stored action: ${actions[stored]}`}. |δ| of this transition with these weights: ${number(head.td_error)}${this.facts.weights.length ? "" : ` (${source})`}.`;
    this.valuesNote.textContent = `Expected return of each action${head.quantiles ? ": the mean, with the middle 50 % (box) and 90 % (line) of the quantiles" : ""}. ● marks the stored action.`;
    if (parts.length) this.drawSaliency(parts[0]);
    else if (head.saliency)
      this.valuesNote.append(` Saliency of the components: ${head.saliency.map(one => number(one, 2)).join(", ")}.`);
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
