// The greatest value that the agent expected at each frame of a branch, with the rewards and who played.

import { css, h } from "./dom.js";

const HEIGHT = 56,
  SPACE = 7; // CSS pixels

export class History {
  /** `onPick(step)` is called when a step is picked. */
  constructor(onPick) {
    this.element = h("canvas.history", {
      role: "img",
      "aria-label": "Greatest value that the agent expected at each frame, with rewards",
      title:
        "The greatest value that the agent expected at each frame. Dots are rewards; you played the coloured part.",
    });
    this.steps = 0;
    const pick = event => {
      if (event.type === "pointermove" && !event.buttons) return;
      const box = this.element.getBoundingClientRect(),
        share = (event.clientX - box.left - SPACE) / (box.width - 2 * SPACE);
      if (this.steps > 1) onPick(Math.round(Math.min(Math.max(share, 0), 1) * (this.steps - 1)));
    };
    this.element.addEventListener("pointerdown", pick);
    this.element.addEventListener("pointermove", pick);
  }

  /** Draw a branch; `at` is the step that is shown. */
  draw(frames, at) {
    const canvas = this.element,
      ratio = Math.min(devicePixelRatio || 1, 2);
    this.steps = frames.length;
    canvas.hidden = frames.length < 2;
    const width = canvas.clientWidth;
    if (!width || frames.length < 2) return;
    canvas.width = width * ratio;
    canvas.height = HEIGHT * ratio;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const values = frames[0].players.map((_, player) =>
      frames.map(frame => Math.max(...frame.players[player].q_values)),
    );
    const low = Math.min(...values.flat()),
      high = Math.max(...values.flat());
    const x = step => SPACE + ((width - 2 * SPACE) * step) / (frames.length - 1);
    const y = value => HEIGHT - SPACE - ((HEIGHT - 2 * SPACE) * (value - low)) / (high - low || 1);
    context.fillStyle = css("--accent-soft");
    frames.forEach((frame, step) => {
      if (frame.players[0].by === "you") context.fillRect(x(step - 1), 0, x(step) - x(step - 1), HEIGHT);
    });
    values.forEach((line, player) =>
      drawLine(
        context,
        line.map((value, step) => [x(step), y(value)]),
        css(player ? "--recycled" : "--accent"),
      ),
    );
    context.fillStyle = css("--rewarded");
    frames.forEach((frame, step) =>
      frame.players.forEach((shot, player) => {
        if (shot.reward && step) dot(context, x(step), y(values[player][step]), 3);
      }),
    );
    context.fillStyle = css("--ink");
    context.fillRect(x(at) - 0.5, 0, 1, HEIGHT);
  }
}

function drawLine(context, points, colour) {
  context.strokeStyle = colour;
  context.lineWidth = 1.6;
  context.lineJoin = "round";
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
  context.stroke();
}

function dot(context, x, y, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}
