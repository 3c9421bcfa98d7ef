// Scales, ticks and the drawing of two axes on a canvas.

export const linear = { name: "linear", to: value => value, from: place => place };
export const log = { name: "log", to: Math.log10, from: place => 10 ** place };

const STEPS = [1, 2, 5, 10];

/** About `count` round values between two places on a scale: [{ place, text }]. */
export function ticks(scale, low, high, count) {
  if (scale.name === "log" && high - low > 1.5) return decades(low, high, count);
  const from = scale.from(low),
    to = scale.from(high),
    rough = (to - from) / Math.max(count, 1);
  const size = 10 ** Math.floor(Math.log10(rough)),
    step = STEPS.find(one => one * size >= rough) * size;
  const found = [];
  for (let value = Math.ceil(from / step) * step; value <= to + step * 1e-9 && found.length < 50; value += step) {
    const rounded = Math.abs(value) < step * 1e-9 ? 0 : value;
    if (scale.name !== "log" || rounded > 0) found.push({ place: scale.to(rounded), text: tickText(rounded, step) });
  }
  return found;
}

function decades(low, high, count) {
  const every = Math.max(Math.ceil((high - low) / Math.max(count, 1)), 1),
    found = [];
  for (let power = Math.ceil(low / every) * every; power <= high; power += every)
    found.push({ place: power, text: powerText(power) });
  return found;
}

const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const powerText = power =>
  power >= -2 && power <= 3
    ? String(Number((10 ** power).toPrecision(3)))
    : `10${[...String(power)].map(letter => SUPERSCRIPT[letter]).join("")}`;

function tickText(value, step) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  if (size > 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toFixed(Math.max(0, -Math.floor(Math.log10(step)) + 1))));
}

export const MARGIN = { left: 58, right: 14, top: 12, bottom: 44 };

/** Draw grid, ticks and titles; `view` has the places at the edges, `size` the pixels of the canvas. */
export function drawAxes(context, { width, height }, view, x, y, colours) {
  const left = MARGIN.left,
    bottom = height - MARGIN.bottom,
    right = width - MARGIN.right,
    top = MARGIN.top;
  context.font = "11px ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  context.lineWidth = 1;
  context.textBaseline = "top";
  context.textAlign = "center";
  for (const { place, text } of ticks(x.scale, view.left, view.right, (right - left) / 90)) {
    const at = Math.round(left + ((right - left) * (place - view.left)) / (view.right - view.left)) + 0.5;
    line(context, at, top, at, bottom, colours.line);
    context.fillStyle = colours.muted;
    context.fillText(text, at, bottom + 7);
  }
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const { place, text } of ticks(y.scale, view.bottom, view.top, (bottom - top) / 56)) {
    const at = Math.round(bottom - ((bottom - top) * (place - view.bottom)) / (view.top - view.bottom)) + 0.5;
    line(context, left, at, right, at, colours.line);
    context.fillStyle = colours.muted;
    context.fillText(text, left - 8, at);
  }
  context.fillStyle = colours.ink;
  context.textAlign = "center";
  context.textBaseline = "bottom";
  context.fillText(x.title, (left + right) / 2, height - 6);
  context.save();
  context.translate(13, (top + bottom) / 2);
  context.rotate(-Math.PI / 2);
  context.textBaseline = "middle";
  context.fillText(y.title, 0, 0);
  context.restore();
}

function line(context, x0, y0, x1, y1, colour) {
  context.strokeStyle = colour;
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}
