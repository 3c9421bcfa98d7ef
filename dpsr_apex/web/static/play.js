// Playing on from a moment: with the agent or by keyboard. Every frame is kept, so any of them can be continued.

import { Companions } from "./companions.js";
import { counted, download, h, icon, notice, number, replace } from "./dom.js";
import { Frames } from "./frames.js";
import { History } from "./history.js";
import { COMMANDS, Keyboard } from "./keyboard.js";
import { Stage } from "./stage.js";

const SPEEDS = { slow: "¼×", real: "1×", fast: "4×", most: "max" };
const MOST_BRANCHES = 12; // that are redrawn with every frame

export class PlayPanel {
  constructor({ run, environment, facts, wire, onReady, onChoose }) {
    Object.assign(this, { run, environment, facts, wire, onReady, onChoose });
    this.keyboard = new Keyboard(environment.actions);
    this.speed = "real";
    this.byHand = false;
    this.build();
    this.reset();
    this.down = event => this.onKey(event, true);
    this.up = event => this.onKey(event, false);
    this.blurred = () => {
      this.keyboard.release();
      this.hold();
    };
    addEventListener("keydown", this.down);
    addEventListener("keyup", this.up);
    addEventListener("blur", this.blurred);
  }

  build() {
    this.stage = new Stage(this.environment.actions, this.environment.screen);
    this.message = h("p.muted.small", {}, "");
    this.branches = h("div.branches", {});
    this.buildControls();
    const shortcuts = Object.entries(COMMANDS).map(([key, text]) => h("span", {}, h("kbd", {}, key), text));
    this.element = h(
      "section.panel.play",
      { id: "play" },
      h("div.bar", {}, h("h2", {}, "Play on"), h("span.grow", {}), this.message),
      this.stage.element,
      this.timeline(),
      this.controls,
      this.buildHelp(),
      this.branches,
      h("p.keys.shortcuts", {}, shortcuts),
    );
  }

  timeline() {
    this.range = h("input", {
      type: "range",
      min: "0",
      max: "0",
      value: "0",
      "aria-label": "Frame",
      oninput: () => this.scrub(Number(this.range.value)),
    });
    this.place = h("span.figure", {});
    this.history = new History(step => this.scrub(step));
    const branch = { hidden: true, onclick: () => this.branch() };
    this.branchButton = h("button", branch, icon("branch"), "Continue from this frame");
    const track = h("div.track", {}, this.history.element, this.range);
    return h("div.timeline", {}, track, this.place, this.branchButton);
  }

  buildControls() {
    this.playButton = h("button.primary", { onclick: () => (this.isPlaying ? this.pause() : this.start()) });
    const choice = (pressed, onclick, ...content) => h("button", { "aria-pressed": String(pressed), onclick }, content);
    this.speeds = h(
      "div.segmented",
      { role: "group", "aria-label": "Speed" },
      Object.entries(SPEEDS).map(([speed, text]) => choice(speed === this.speed, () => this.setSpeed(speed), text)),
    );
    this.drivers = h(
      "div.segmented",
      { role: "group", "aria-label": "Who plays" },
      choice(true, () => this.drive(false), "Agent"),
      choice(false, () => this.drive(true), icon("hand"), "You"),
    );
    const step = h("button", { title: "One step", onclick: () => this.step() }, icon("step"), "Step");
    const more = this.buildMore();
    this.controls = h(
      "div.play-controls",
      {},
      this.playButton,
      step,
      this.speeds,
      this.drivers,
      h("span.grow", {}),
      more,
    );
  }

  buildMore() {
    const saliency = {
      "aria-pressed": "false",
      title: "Show at every frame what the value of the greedy action depends on",
      onclick: () => this.setSaliency(!this.showsSaliency),
    };
    this.saliencyButton = h("button", saliency, icon("eye"), "Saliency");
    const { run, facts, onChoose: onFocus } = this;
    this.companions = new Companions({ run, facts, onFocus, onChoose: (...chosen) => this.compare(...chosen) });
    const save = { title: "Save this branch as a video", onclick: () => this.save() };
    this.saveButton = h("button", save, icon("save"), "Save mp4");
    return [this.environment.pixels ? this.saliencyButton : null, this.companions.element, this.saveButton];
  }

  /** What each key does, as buttons for those without a keyboard. */
  buildHelp() {
    const touch = action => {
      this.keyboard.touch(action);
      this.continueHere();
      this.hold();
    };
    const buttons = this.environment.actions.map((name, action) => this.keyboard.button(name, action, touch));
    this.help = h("div.keys", { hidden: true }, h("span.muted.small", {}, "Keys"), buttons);
    return this.help;
  }

  /** Forget all frames: another moment, other weights, or another companion. */
  reset() {
    this.frames = new Frames();
    this.isPlaying = this.isComparing = false;
    this.held = null;
    this.keyboard.touch(null);
    this.message.textContent = "";
    this.stage.clear("Loading the environment and the agent…");
    replace(this.branches);
    this.controls.classList.add("waiting");
    this.drawButtons();
  }

  // Commands.

  start() {
    this.continueHere();
    this.isPlaying = true;
    this.wire.send("play", { speed: this.speed });
    this.drawButtons();
  }

  pause() {
    this.isPlaying = false;
    this.wire.send("pause");
    this.drawButtons();
  }

  step() {
    this.continueHere();
    this.isPlaying = false;
    this.wire.send("step");
    this.drawButtons();
  }

  save() {
    this.saveButton.disabled = true;
    this.message.textContent = "Creating the video…";
    this.wire.send("save");
  }

  /** Take an action once from the moment itself, then leave the next step to whoever plays. */
  act(action) {
    if (!this.frames.size) return;
    this.isPlaying = false;
    this.frames.shown = 0;
    this.branch();
    this.wire.send("drive", { who: "you" });
    this.wire.send("keys", { action });
    this.wire.send("keys", { action: null });
    if (!this.byHand) this.wire.send("drive", { who: "agent" });
  }

  setSpeed(speed) {
    this.speed = speed;
    const names = Object.keys(SPEEDS);
    for (const [place, button] of [...this.speeds.children].entries()) {
      button.setAttribute("aria-pressed", String(names[place] === speed));
    }
    if (this.isPlaying) this.wire.send("play", { speed });
  }

  /** Take over, or hand back to the agent. */
  drive(byHand) {
    this.byHand = byHand;
    this.wire.send("drive", { who: byHand ? "you" : "agent" });
    this.keyboard.release();
    this.held = null;
    for (const [place, button] of [...this.drivers.children].entries()) {
      button.setAttribute("aria-pressed", String((place === 1) === byHand));
    }
    this.help.hidden = !byHand;
    const hint =
      this.environment.noop === null
        ? "Each key press is one step."
        : "Hold keys to act; without a key, the no-op is taken.";
    this.message.textContent = byHand ? hint : "";
    document.activeElement?.blur?.();
  }

  get showsSaliency() {
    return this.saliencyButton.getAttribute("aria-pressed") === "true";
  }

  setSaliency(on) {
    this.saliencyButton.setAttribute("aria-pressed", String(on));
    this.wire.send("saliency", { on });
  }

  /** If an earlier frame is shown, continue from there. */
  continueHere() {
    if (this.frames.shown !== null && this.frames.shown !== this.frames.tip) this.branch();
  }

  branch() {
    this.isPlaying = false;
    this.wire.send("branch", { frame: this.frames.shown });
    this.frames.tip = this.frames.shown;
    this.drawTimeline();
    this.drawButtons();
  }

  /** Let another agent play beside this one. */
  compare(run, weights, name) {
    this.companion = name;
    this.isComparing = true;
    this.controls.classList.add("waiting");
    this.message.textContent = "Loading the other agent…";
    this.wire.send("compare", { run, weights });
  }

  // Keys.

  onKey(event, isDown) {
    const isTyping = event.target.closest?.("input:not([type=range]), textarea, select");
    if (isTyping || event.metaKey || event.ctrlKey || event.altKey) return;
    if (this.onCommand(event, isDown) || !this.byHand || !this.keyboard.press(event, isDown)) return;
    event.preventDefault();
    if (event.repeat) return;
    if (isDown) this.continueHere();
    this.hold();
  }

  /** Obey a key that is a command; return whether it is one. */
  onCommand(event, isDown) {
    if (!(event.key in COMMANDS) || this.controls.classList.contains("waiting")) return false;
    event.preventDefault();
    if (!isDown) return true;
    const path = this.frames.path(),
      at = path.findIndex(frame => frame.frame === this.frames.shown);
    if (event.key === "p") this.playButton.click();
    else if (event.key === "t") this.drive(!this.byHand);
    else if (event.key === "b") this.continueHere();
    else if (event.key === ",") this.scrub(Math.max(at - 1, 0));
    else if (at < path.length - 1) this.scrub(at + 1);
    else if (!this.byHand) this.step();
    return true;
  }

  /** Hold the action of the keys that are pressed. */
  hold() {
    if (!this.byHand) return;
    const { action } = this.keyboard;
    if (action !== this.held) this.wire.send("keys", { action });
    this.held = action;
  }

  // Events.

  take(head, parts) {
    if (head.event === "frame") this.takeFrame(head, parts);
    else if (head.event === "paused") this.stop();
    else if (head.event === "video") this.takeVideo(head, parts);
    else if (head.event === "problem") this.takeProblem();
  }

  stop() {
    this.isPlaying = false;
    this.drawButtons();
  }

  /** The last command failed: what is shown stays as it is. */
  takeProblem() {
    this.saveButton.disabled = false;
    this.isComparing = false;
    this.message.textContent = "";
    if (this.frames.size) this.controls.classList.remove("waiting");
    this.stop();
  }

  takeFrame(head, parts) {
    if (this.isComparing && head.players.length > 1) this.reset();
    const isNew = this.frames.add(head, parts);
    if (this.stage.isEmpty) this.stage.build(head.players.map((_, place) => (place ? this.companion : "This agent")));
    if (isNew && head.frame === 0) this.restoreChoices();
    this.show();
    if (head.frame === 0) {
      this.controls.classList.remove("waiting");
      this.drawButtons();
      this.onReady?.();
    }
    if (head.players.every(player => player.over)) this.stop();
  }

  /** After a new beginning, the emulator plays with the agent and shows no saliency: let it do what was chosen here. */
  restoreChoices() {
    if (this.byHand) this.wire.send("drive", { who: "you" });
    if (this.showsSaliency) this.wire.send("saliency", { on: true });
  }

  takeVideo(head, parts) {
    this.saveButton.disabled = false;
    this.message.textContent = "";
    const url = URL.createObjectURL(new Blob([parts[0]], { type: "video/mp4" }));
    download(url, head.name);
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    notice(`${head.name} is saved.`);
  }

  // What is shown.

  /** Show a step of the branch that is shown. */
  scrub(step) {
    const path = this.frames.path();
    if (this.isPlaying) this.pause();
    this.frames.shown = path[Math.min(step, path.length - 1)].frame;
    this.show();
  }

  async show() {
    const { frames } = this,
      frame = frames.get(frames.shown);
    this.drawTimeline();
    if (!frame) return;
    this.place.textContent = `${frame.step} / ${frames.end.step}`;
    await this.stage.show(frame, frames.nextOf(frames.shown));
    const { dataset } = document.documentElement;
    dataset.framesShown = String(Number(dataset.framesShown ?? 0) + 1);
  }

  drawTimeline() {
    const { frames } = this,
      path = frames.path(),
      at = path.findIndex(frame => frame.frame === frames.shown);
    this.range.max = String(Math.max(path.length - 1, 0));
    this.range.value = String(at);
    this.range.style.setProperty("--share", `${path.length > 1 ? (100 * at) / (path.length - 1) : 100}%`);
    this.history.draw(path, at);
    this.branchButton.hidden = frames.shown === frames.tip || frames.isOver;
    this.drawBranches();
  }

  /** A button for every end of the tree. */
  drawBranches() {
    const { frames } = this,
      ends = frames.ends(),
      current = frames.end;
    this.branches.hidden = ends.length < 2;
    const isBusy = this.isPlaying && this.branches.childElementCount === ends.length && ends.length > MOST_BRANCHES;
    if (ends.length < 2 || isBusy) return;
    const button = (end, place) =>
      h(
        "button.chip",
        { "aria-pressed": String(end === current), onclick: () => this.showBranch(end) },
        `${place + 1}`,
        h("span.muted", {}, ` ${counted(end.step, "step")}, score ${number(end.players[0].score)}`),
      );
    replace(this.branches, h("span.muted.small", {}, "Branches"), ends.map(button));
  }

  showBranch(end) {
    this.pause();
    this.frames.shown = end.frame;
    this.show();
  }

  drawButtons() {
    replace(this.playButton, icon(this.isPlaying ? "pause" : "play"), this.isPlaying ? "Pause" : "Play");
    this.playButton.disabled = !this.frames.size || (this.frames.isOver && !this.isPlaying);
  }

  /** The emulator has ended; `again` starts another one. */
  end(reason, again) {
    this.controls.classList.add("waiting");
    const button = kind => (again ? h(`button${kind}`, { onclick: again }, "Start again") : null);
    if (this.stage.isEmpty) this.stage.clear(reason, h("p", {}, button("")));
    else replace(this.message, reason, " ", button(".quiet"));
    this.stop();
  }

  leave() {
    this.companions.leave();
    removeEventListener("keydown", this.down);
    removeEventListener("keyup", this.up);
    removeEventListener("blur", this.blurred);
  }
}
