// The screens of a play, one for each player, with the values that the agent expects.

import { h, number, replace, signed } from "./dom.js";
import { Values } from "./values.js";
import { paintHeat, picture } from "./wire.js";

export class Stage {
  /** `screen` is the height and width of the environment's pictures; null if it has none. */
  constructor(actions, screen) {
    this.actions = actions;
    this.screen = screen;
    this.element = h("div.stage", {});
    this.players = [];
  }

  get isEmpty() {
    return !this.players.length;
  }

  /** Show text instead of players. */
  clear(text, ...more) {
    this.players = [];
    replace(this.element, h("div.screen.empty", {}, text, ...more));
  }

  /** Show players with these names; a single one needs none. */
  build(names) {
    this.players = names.map(name => this.player(names.length > 1 ? name : null));
    replace(
      this.element,
      this.players.map(player => player.element),
    );
    this.element.dataset.players = this.players.length;
  }

  player(name) {
    const canvas = h("canvas.screen", { width: 160, height: 210 });
    const heat = h("canvas.heat", { hidden: true });
    const values = new Values(this.actions);
    const caption = h("p.caption", {});
    const view = h("div.view", {}, h("div.frame", {}, canvas, heat), values.element);
    const element = h("div.player", {}, name ? h("p.muted.small", {}, name) : null, view, caption);
    return { canvas, heat, values, caption, element, turn: 0 };
  }

  /** Show a frame; `next` is the one that follows, if there is one. */
  async show(frame, next) {
    for (const [place, player] of this.players.entries()) {
      const shot = frame.players[place],
        turn = ++player.turn;
      if (!shot) continue;
      player.values.show(shot.q_values, { taken: next?.players[place]?.action ?? null });
      this.describe(player.caption, shot);
      const image = await picture(frame.parts[shot.screen]);
      const heat = shot.saliency === undefined ? null : await picture(frame.parts[shot.saliency]);
      if (turn !== player.turn) continue; // a later frame is shown
      this.paint(player.canvas, image, shot.is_screen);
      player.heat.hidden = !heat;
      if (heat) paintHeat(player.heat, heat);
    }
  }

  describe(caption, shot) {
    const taken = shot.action === null ? "the stored state" : `${this.actions[shot.action]} by ${shot.by}`;
    const ending = `${shot.life_lost ? " · life lost" : ""}${shot.over ? " · game over" : ""}`;
    replace(
      caption,
      h("b", {}, taken),
      h("span", { class: shot.reward ? "gained" : "muted" }, ` · reward ${shot.reward ? signed(shot.reward) : "0"}`),
      h("span.muted", {}, ` · score ${number(shot.score)}${ending}`),
    );
  }

  paint(canvas, image, isScreen) {
    const [height, width] = this.screen ?? [image.height, image.width];
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, width, height); // an observation is stretched to the shape of the screen
    canvas.classList.toggle("observation", !isScreen);
  }
}
