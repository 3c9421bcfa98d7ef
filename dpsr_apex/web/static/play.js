// Playing on from a moment: with the agent or by keyboard. Every frame is kept, so any of them can be continued.

import { counted, download, h, icon, listen, notice, number, replace, signed } from "./dom.js";
import { History } from "./history.js";
import { Values } from "./values.js";
import { paintHeat, picture } from "./wire.js";

const SPEEDS = [["slow", "¼×"], ["real", "1×"], ["fast", "4×"], ["most", "max"]];
const KEYS = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right", " ": "fire", w: "up", s: "down", a: "left", d: "right" };
const COMMANDS = { p: "play or pause", ".": "next step", ",": "previous frame", t: "take over or hand back", b: "continue from this frame" }; // other keys
const SYMBOLS = { up: "↑", down: "↓", left: "←", right: "→", fire: "Space" };

/** The keys of every action: the directions in its name, or a digit where it has none and there is one. */
export function keysOf(actions) {
  const found = actions.map(name => {
    const word = name.toLowerCase();
    return ["up", "down", "left", "right", "fire"].filter(part => word.includes(part));
  });
  return found.map((keys, action) => keys.length || ["noop", "none"].includes(actions[action].toLowerCase()) || action >= 9 ? { held: keys } : { held: [], digit: String(action + 1) });
}

export class PlayPanel {
  constructor({ run, id, environment, facts, wire, onReady, onChoose }) {
    Object.assign(this, { run, id, environment, facts, wire, onReady, onChoose });
    this.others = []; // runs of the same environment
    this.actions = environment.actions;
    this.keys = keysOf(this.actions);
    this.pressed = new Set();
    this.touched = null; // the action whose button is held
    this.speed = "real";
    this.byHand = false;
    this.build();
    this.reset();
    this.down = event => this.onKey(event, true);
    this.up = event => this.onKey(event, false);
    this.blurred = () => { this.pressed.clear(); this.touched = null; this.hold(); };
    addEventListener("keydown", this.down);
    addEventListener("keyup", this.up);
    addEventListener("blur", this.blurred);
  }

  build() {
    this.stage = h("div.stage", {});
    this.playButton = h("button.primary", { onclick: () => this.isPlaying ? this.pause() : this.start() });
    this.speeds = h("div.segmented", { role: "group", "aria-label": "Speed" }, SPEEDS.map(([speed, text]) => h("button", { "aria-pressed": String(speed === this.speed), onclick: () => this.setSpeed(speed) }, text)));
    this.drivers = h("div.segmented", { role: "group", "aria-label": "Who plays" }, h("button", { "aria-pressed": "true", onclick: () => this.drive(false) }, "Agent"), h("button", { "aria-pressed": "false", onclick: () => this.drive(true) }, icon("hand"), "You"));
    this.range = h("input", { type: "range", min: "0", max: "0", value: "0", "aria-label": "Frame", oninput: () => this.scrub(Number(this.range.value)) });
    this.place = h("span.figure", {});
    this.history = new History(step => this.scrub(step));
    this.branchButton = h("button", { hidden: true, onclick: () => this.branch() }, icon("branch"), "Continue from this frame");
    this.branches = h("div.branches", {});
    this.help = h("div.keys", { hidden: true });
    this.shortcuts = h("p.keys.shortcuts", {}, Object.entries(COMMANDS).map(([key, text]) => h("span", {}, h("kbd", {}, key), text)));
    this.message = h("p.muted.small", {}, "");
    this.saliencyButton = h("button", { "aria-pressed": "false", title: "Show at every frame what the value of the greedy action depends on", onclick: () => this.setSaliency(this.saliencyButton.getAttribute("aria-pressed") !== "true") }, icon("eye"), "Saliency");
    this.compareChoice = h("select", { "aria-label": "Compare with", onfocus: () => this.onChoose(), onchange: () => this.compare() });
    this.fillCompare();
    this.saveButton = h("button", { title: "Save this branch as a video", onclick: () => { this.saveButton.disabled = true; this.message.textContent = "Creating the video…"; this.wire.send("save"); } }, icon("save"), "Save mp4");
    this.controls = h("div.play-controls", {}, this.playButton, h("button", { title: "One step", onclick: () => this.step() }, icon("step"), "Step"), this.speeds, this.drivers, h("span.grow", {}), this.environment.pixels ? this.saliencyButton : null, this.compareChoice, this.saveButton);
    this.element = h("section.panel.play", { id: "play" }, h("div.bar", {}, h("h2", {}, "Play on"), h("span.grow", {}), this.message), this.stage, h("div.timeline", {}, h("div.track", {}, this.history.element, this.range), this.place, this.branchButton), this.controls, this.help, this.branches, this.shortcuts);
    replace(this.help, h("span.muted.small", {}, "Keys"), this.actions.map((name, action) => this.keyButton(name, action)));
    this.listOthers();
  }

  /** What a key does, and a button for those without a keyboard. */
  keyButton(name, action) {
    const touch = touched => event => { event.preventDefault(); this.touched = touched; this.continueHere(); this.hold(); };
    return h("button.key", { onpointerdown: touch(action), onpointerup: touch(null), onpointercancel: touch(null), onpointerleave: touch(null), oncontextmenu: event => event.preventDefault() }, h("kbd", {}, this.keyText(action)), name);
  }

  keyText(action) {
    const { held, digit } = this.keys[action];
    return digit ?? (held.length ? held.map(key => SYMBOLS[key]).join("") : "no key");
  }

  /** Forget all frames: another moment, other weights, or another companion. */
  reset() {
    this.frames = new Map();
    this.tip = null; // the frame from which a step would continue
    this.shown = null;
    this.isPlaying = this.isComparing = false;
    this.held = this.touched = null;
    this.message.textContent = "";
    this.players = [];
    replace(this.stage, h("div.screen.empty", {}, "Loading the environment and the agent…"));
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

  /** Take an action once from the moment itself, then leave the next step to whoever plays. */
  act(action) {
    if (!this.frames.has(0)) return;
    this.isPlaying = false;
    this.shown = 0;
    this.branch();
    this.wire.send("drive", { who: "you" });
    this.wire.send("keys", { action });
    this.wire.send("keys", { action: null });
    if (!this.byHand) this.wire.send("drive", { who: "agent" });
  }

  setSpeed(speed) {
    this.speed = speed;
    for (const [place, button] of [...this.speeds.children].entries()) button.setAttribute("aria-pressed", String(SPEEDS[place][0] === speed));
    if (this.isPlaying) this.wire.send("play", { speed });
  }

  /** Take over, or hand back to the agent. */
  drive(byHand) {
    this.byHand = byHand;
    this.wire.send("drive", { who: byHand ? "you" : "agent" });
    this.pressed.clear();
    this.touched = this.held = null;
    [...this.drivers.children].forEach((button, place) => button.setAttribute("aria-pressed", String((place === 1) === byHand)));
    this.help.hidden = !byHand;
    if (byHand) this.message.textContent = this.environment.noop === null ? "Each key press is one step." : "Hold keys to act; without a key, the no-op is taken.";
    else this.message.textContent = "";
    document.activeElement?.blur?.();
  }

  setSaliency(on) {
    this.saliencyButton.setAttribute("aria-pressed", String(on));
    this.wire.send("saliency", { on });
  }

  /** If an earlier frame is shown, continue from there. */
  continueHere() {
    if (this.shown !== null && this.shown !== this.tip) this.branch();
  }

  branch() {
    this.isPlaying = false;
    this.wire.send("branch", { frame: this.shown });
    this.tip = this.shown;
    this.drawTimeline();
    this.drawButtons();
  }

  async listOthers() {
    const runs = [];
    const stop = listen("/api/runs", event => {
      runs.push(...event.lines.filter(line => line.environment === this.facts.environment && line.run !== this.run).map(line => line.run));
      if (event.complete) { stop(); this.others = runs; this.fillCompare(); }
    });
    this.stopListing = stop;
  }

  fillCompare() {
    const runs = this.others, own = this.facts.weights.map(one => h("option", { value: JSON.stringify([this.run, one.key]) }, one.label));
    replace(this.compareChoice, h("option", { value: "" }, "Compare with…"), h("optgroup", { label: "This run" }, own), runs.length ? h("optgroup", { label: "Newest weights of another run" }, runs.slice(0, 100).map(run => h("option", { value: JSON.stringify([run, ""]) }, run))) : null);
  }

  compare() {
    if (!this.compareChoice.value) return;
    const [run, weights] = JSON.parse(this.compareChoice.value);
    this.companion = run === this.run ? this.compareChoice.selectedOptions[0].textContent : run;
    this.isComparing = true;
    this.controls.classList.add("waiting");
    this.message.textContent = "Loading the other agent…";
    this.wire.send("compare", { run, weights });
    this.compareChoice.value = "";
  }

  // Keys.

  onKey(event, isDown) {
    if (event.target.closest?.("input:not([type=range]), textarea, select") || event.metaKey || event.ctrlKey || event.altKey) return;
    if (this.onCommand(event, isDown)) return;
    const digit = this.keys.findIndex(one => one.digit === event.key), key = KEYS[event.key] ?? KEYS[event.key.toLowerCase()] ?? (digit >= 0 ? `digit ${digit}` : null);
    if (!this.byHand || !key) return;
    event.preventDefault();
    if (event.repeat) return;
    if (isDown) this.pressed.add(key);
    else this.pressed.delete(key);
    if (isDown) this.continueHere();
    this.hold();
  }

  /** Obey a key that is no action; return whether it is one. */
  onCommand(event, isDown) {
    if (!(event.key in COMMANDS) || this.controls.classList.contains("waiting")) return false;
    event.preventDefault();
    const path = this.path(), at = path.indexOf(this.shown);
    if (!isDown) return true;
    if (event.key === "p") this.playButton.click();
    else if (event.key === "t") this.drive(!this.byHand);
    else if (event.key === "b") this.continueHere();
    else if (event.key === ",") this.scrub(Math.max(at - 1, 0));
    else if (at < path.length - 1) this.scrub(at + 1);
    else if (!this.byHand) this.step();
    return true;
  }

  /** Hold the action of the keys that are pressed: of the largest part of them that is an action. */
  hold() {
    if (!this.byHand) return;
    let best = this.touched, most = best === null ? 0 : Infinity;
    for (const [action, { held, digit }] of this.keys.entries()) {
      const fits = digit ? this.pressed.has(`digit ${action}`) : held.length > 0 && held.every(key => this.pressed.has(key));
      const size = digit ? 1 : held.length;
      if (fits && size > most) { best = action; most = size; }
    }
    if (best !== this.held) this.wire.send("keys", { action: best });
    this.held = best;
  }

  // Events.

  take(head, parts) {
    if (head.event === "frame") this.takeFrame(head, parts);
    else if (head.event === "paused") { this.isPlaying = false; this.drawButtons(); }
    else if (head.event === "video") this.takeVideo(head, parts);
    else if (head.event === "problem") this.takeProblem();
  }

  /** What was asked for last is not done: what is shown stays as it is. */
  takeProblem() {
    this.saveButton.disabled = false;
    this.isComparing = this.isPlaying = false;
    this.message.textContent = "";
    if (this.frames.size) this.controls.classList.remove("waiting");
    this.drawButtons();
  }

  takeFrame(head, parts) {
    if (this.isComparing && head.players.length > 1) this.reset();
    const known = this.frames.get(head.frame);
    this.frames.set(head.frame, { ...head, parts, children: known?.children ?? [] });
    if (!known && head.parent !== null) this.frames.get(head.parent)?.children.push(head.frame);
    const follows = this.shown === this.tip || this.tip === null;
    this.tip = head.frame;
    if (!this.players.length) this.buildStage(head);
    if (!known && head.frame === 0) this.restoreChoices();
    if (follows) this.shown = head.frame;
    this.drawTimeline();
    this.show(this.shown);
    if (head.frame === 0) { this.controls.classList.remove("waiting"); this.drawButtons(); this.onReady?.(); }
    if (head.players.every(player => player.over)) { this.isPlaying = false; this.drawButtons(); }
  }

  /** After a new beginning, the emulator plays with the agent and shows no saliency: let it do what was chosen here. */
  restoreChoices() {
    if (this.byHand) this.wire.send("drive", { who: "you" });
    if (this.saliencyButton.getAttribute("aria-pressed") === "true") this.wire.send("saliency", { on: true });
  }

  takeVideo(head, parts) {
    this.saveButton.disabled = false;
    this.message.textContent = "";
    const url = URL.createObjectURL(new Blob([parts[0]], { type: "video/mp4" }));
    download(url, head.name);
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    notice(`${head.name} is saved.`);
  }

  buildStage(head) {
    this.players = head.players.map((_, place) => {
      const canvas = h("canvas.screen", { width: 160, height: 210 }), values = new Values(this.actions), caption = h("p.caption", {}), heat = h("canvas.heat", { hidden: true });
      const name = head.players.length > 1 ? h("p.muted.small", {}, place ? this.companion : "This agent") : null;
      return { canvas, values, caption, heat, element: h("div.player", {}, name, h("div.view", {}, h("div.frame", {}, canvas, heat), values.element), caption), inTurn: 0 };
    });
    replace(this.stage, this.players.map(player => player.element));
    this.stage.dataset.players = this.players.length;
  }

  /** Show a frame, wherever it is in the tree. */
  async show(wanted) {
    const frame = this.frames.get(wanted);
    if (!frame) return;
    const next = this.nextOf(wanted);
    this.place.textContent = `${frame.step} / ${this.frames.get(this.tipOfPath())?.step ?? frame.step}`;
    for (const [place, view] of this.players.entries()) {
      const shot = frame.players[place], turn = ++view.inTurn;
      if (!shot) continue;
      view.values.show(shot.q_values, { taken: next?.players[place]?.action ?? null });
      const taken = shot.action === null ? "the stored state" : `${this.actions[shot.action]} by ${shot.by}`;
      replace(view.caption, h("b", {}, taken), h("span", { class: shot.reward ? "gained" : "muted" }, ` · reward ${shot.reward ? signed(shot.reward) : "0"}`), h("span.muted", {}, ` · score ${number(shot.score)}${shot.life_lost ? " · life lost" : ""}${shot.over ? " · game over" : ""}`));
      const image = await picture(frame.parts[shot.screen]), heat = shot.saliency === undefined ? null : await picture(frame.parts[shot.saliency]);
      if (turn !== view.inTurn) continue;
      this.paint(view, image, shot.is_screen);
      view.heat.hidden = !heat;
      if (heat) paintHeat(view.heat, heat);
    }
    document.documentElement.dataset.framesShown = String(Number(document.documentElement.dataset.framesShown ?? 0) + 1);
  }

  paint(view, image, isScreen) {
    const canvas = view.canvas, [height, width] = this.environment.screen ?? [image.height, image.width];
    if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, width, height); // an observation is stretched to the shape of the screen
    canvas.classList.toggle("observation", !isScreen);
  }

  /** The frame that follows on the path to the tip. */
  nextOf(number) {
    let frame = this.frames.get(this.tipOfPath());
    while (frame && frame.parent !== number) frame = this.frames.get(frame.parent);
    return frame;
  }

  /** The last frame of the branch that is shown. */
  tipOfPath() {
    let frame = this.frames.get(this.shown), tip = this.frames.get(this.tip);
    for (let one = tip; one; one = this.frames.get(one.parent)) if (one === frame) return this.tip;
    while (frame?.children.length) frame = this.frames.get(frame.children.at(-1));
    return frame?.frame ?? this.tip;
  }

  path() {
    const path = [];
    for (let frame = this.frames.get(this.tipOfPath()); frame; frame = this.frames.get(frame.parent)) path.push(frame.frame);
    return path.reverse();
  }

  scrub(step) {
    const path = this.path();
    if (this.isPlaying) this.pause();
    this.shown = path[Math.min(step, path.length - 1)];
    this.show(this.shown);
    this.drawTimeline();
  }

  drawTimeline() {
    const path = this.path(), at = path.indexOf(this.shown);
    this.range.max = String(Math.max(path.length - 1, 0));
    this.range.value = String(at);
    this.range.style.setProperty("--share", `${path.length > 1 ? 100 * at / (path.length - 1) : 100}%`);
    const frame = this.frames.get(this.shown);
    this.history.draw(path.map(number => this.frames.get(number)), at);
    this.branchButton.hidden = this.shown === this.tip || frame?.players.every(player => player.over);
    this.drawBranches();
  }

  /** A button for every end of the tree. */
  drawBranches() {
    const ends = [...this.frames.values()].filter(frame => !frame.children.length);
    this.branches.hidden = ends.length < 2;
    if (ends.length < 2 || (this.isPlaying && this.branches.childElementCount === ends.length && ends.length > 12)) return;
    const current = this.tipOfPath();
    replace(this.branches, h("span.muted.small", {}, "Branches"), ends.map((end, place) => h("button.chip", { "aria-pressed": String(end.frame === current), onclick: () => { this.pause(); this.shown = end.frame; this.show(end.frame); this.drawTimeline(); } }, `${place + 1}`, h("span.muted", {}, ` ${counted(end.step, "step")}, score ${number(end.players[0].score)}`))));
  }

  drawButtons() {
    replace(this.playButton, icon(this.isPlaying ? "pause" : "play"), this.isPlaying ? "Pause" : "Play");
    const over = this.frames.get(this.shown)?.players.every(player => player.over) ?? true;
    this.playButton.disabled = !this.frames.size || (over && !this.isPlaying);
  }

  end(reason, again) {
    this.isPlaying = false;
    this.controls.classList.add("waiting");
    this.message.textContent = this.players.length ? reason : "";
    if (!this.players.length) replace(this.stage, h("div.screen.empty", {}, reason));
    if (again) this.message.append(" ", h("button.quiet", { onclick: again }, "Start again"));
    if (again && !this.players.length) this.stage.firstChild.append(h("p", {}, h("button", { onclick: again }, "Start again")));
    this.drawButtons();
  }

  leave() {
    this.stopListing?.();
    removeEventListener("keydown", this.down);
    removeEventListener("keyup", this.up);
    removeEventListener("blur", this.blurred);
  }
}
