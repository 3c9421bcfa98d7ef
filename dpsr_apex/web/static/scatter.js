// A scatter plot of millions of points: axes, and what the pointer and the keys do with it.
//
// Points are given in the order in which they are drawn: common kinds first, so that rare ones are on top. In each frame as
// many are drawn as this machine can draw without delaying the pointer: all of them with a graphics card, a part without
// one, and the others in the frames that follow. Moving from one pair of axes to another, or to a later state of the same
// points, is animated. The pointer zooms, pans, points and draws a lasso.

import { drawAxes, MARGIN } from "./axes.js";
import { css } from "./dom.js";
import { Gestures } from "./gestures.js";
import { Grid, isInside } from "./grid.js";
import { Points } from "./points.js";
import { kindOf, KINDS, palette, startsOf } from "./survey.js";

const NEAR = 9; // pixels
const MOST_ANIMATED = 400_000; // points
const FEWEST = 50_000; // points in a frame
const FAST = 36; // milliseconds: after a frame that took less, more points are drawn in the next one
const SLOW = 60; // milliseconds: after a frame that took more, fewer points are drawn in the next one
const MOST_PARTS = 60; // of all points: WebGL allows strides of less than 256 bytes
// prettier-ignore
const LOOKS = [[1e3, 8, 0.9], [4e3, 6.5, 0.78], [2e4, 5, 0.62], [1e5, 3.2, 0.45], [4e5, 2.4, 0.34]]; // by the greatest number of points: size and opacity
const SMALLEST = [1.9, 0.26];

export class Scatter {
  constructor(element, { onHover, onPick, onSelect, onDrawn }) {
    Object.assign(this, { element, onHover, onPick, onSelect, onDrawn });
    const [back, canvas, over] = ["back", "points", "over"].map(name =>
      Object.assign(document.createElement("canvas"), { className: name }),
    );
    Object.assign(this, { back, canvas, over }); // the grid, the points, and what follows the pointer
    element.append(back, canvas, over);
    this.over.tabIndex = 0;
    this.over.setAttribute("role", "img");
    this.points = new Points(this.canvas, () => {
      this.upload();
      this.draw();
    });
    this.count = 0;
    this.view = null;
    this.full = null;
    this.mixing = 1;
    this.turn = 0; // of animations
    this.drawing = 0; // number of the last frame
    this.pace = FEWEST; // points in a frame
    this.hovered = -1; // row
    this.isSelecting = false;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(element);
    this.gestures = new Gestures(this, this.over);
  }

  /** Show other points, given their looks, by kind: a kind from 0 to 3, plus 4 for a diamond. */
  setPoints(looks) {
    this.drawing++; // nothing more of the former ones
    this.count = looks.length;
    this.looks = looks;
    this.starts = startsOf(looks);
    this.x = this.y = null;
    this.shown = new Uint8Array(this.count).fill(1);
    this.hovered = -1;
  }

  /** Place the points on two axes: { title, scale, places of all rows on the scale (NaN without a value), extent }.
   *
   * `from` has the places from which the points move there; without it, those where they are.
   */
  setAxes(x, y, { keepView = false, animate = true, from = null } = {}) {
    const isSame = this.axes?.[0] === x.title && this.axes[1] === y.title,
      wasFull = this.view && same(this.view, this.full);
    const before = this.view,
      old = from ?? [this.x?.places, this.y?.places],
      isMoved = old[0] !== x.places || old[1] !== y.places;
    Object.assign(this, { x, y, axes: [x.title, y.title], grid: null });
    this.full = { ...widened(x.extent, "left", "right"), ...widened(y.extent, "bottom", "top") };
    if (!before || !keepView || !isSame || wasFull) this.view = { ...this.full };
    this.upload();
    this.settle();
    if (animate && isMoved && before && this.count < MOST_ANIMATED && old[0]?.length === this.count)
      this.animate(before, old);
    else this.draw();
  }

  /** Show some of the points only: 1 or 0 for each row. */
  setShown(shown) {
    this.shown = shown;
    this.hovered = -1;
    this.uploadShown();
    this.draw();
  }

  upload() {
    if (!this.x) return;
    this.points.put("look", this.looks);
    this.points.put("toX", this.x.places);
    this.points.put("toY", this.y.places);
    this.uploadShown();
  }

  /** A point without a place on one of the axes is not shown. */
  uploadShown() {
    const { shown } = this,
      x = this.x.places,
      y = this.y.places,
      visible = new Uint8Array(this.count);
    for (let row = 0; row < visible.length; row++)
      visible[row] = shown[row] && x[row] === x[row] && y[row] === y[row] ? 1 : 0;
    this.points.put("shown", visible);
  }

  /** End an animation: all points are where they belong. */
  settle() {
    this.turn++;
    this.mixing = 1;
  }

  /** Move from another view, and the points from other places; those that had none appear where they belong. */
  animate(before, [oldX, oldY]) {
    const known = (old, places) => old.map((place, row) => (place === place ? place : places[row]));
    this.points.put("fromX", known(oldX, this.x.places));
    this.points.put("fromY", known(oldY, this.y.places));
    const began = performance.now(),
      target = { ...this.view },
      length = 420,
      turn = this.turn;
    this.mixing = 0;
    this.view = { ...before };
    const step = now => {
      if (turn !== this.turn) return; // the pointer or other axes have moved the view meanwhile
      const share = Math.min((now - began) / length, 1),
        eased = share < 0.5 ? 4 * share ** 3 : 1 - (-2 * share + 2) ** 3 / 2;
      this.mixing = eased;
      for (const side of Object.keys(target)) this.view[side] = before[side] + (target[side] - before[side]) * eased;
      this.drawNow();
      if (share < 1 && this.element.isConnected) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  resize() {
    const box = this.element.getBoundingClientRect(),
      ratio = Math.min(devicePixelRatio || 1, 2);
    this.width = Math.max(box.width, 50);
    this.height = Math.max(box.height, 50);
    this.ratio = ratio;
    for (const canvas of [this.back, this.canvas, this.over]) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(this.height * ratio);
    }
    this.drawNow();
  }

  draw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      this.drawNow();
    });
  }

  drawNow() {
    if (!this.view || !this.width) return;
    const { inner } = this;
    if (inner.width <= 0 || inner.height <= 0) return;
    this.points.clear();
    this.drawParts(this.parts());
    drawAxes(this.cleared(this.back), this, this.view, this.x, this.y, themeColours());
    this.drawOver();
  }

  /** All points in the order in which they are drawn, each part small enough for a frame.
   *
   * If a frame cannot have all of them, the first parts are spread over all kinds, for a first impression. The others
   * follow kind by kind, and rare kinds are repeated, because common ones have covered them.
   */
  parts() {
    const every = this.pace >= this.count ? 1 : Math.min(Math.ceil(this.count / FEWEST), MOST_PARTS),
      impression = [],
      others = [];
    for (const kind of KINDS.keys()) {
      for (let part = 0; part < every; part++) {
        const first = this.starts[kind] + part,
          count = Math.ceil((this.starts[kind + 1] - first) / every);
        if (count <= 0) break;
        if (!part) impression.push({ first, every, count });
        if (every > 1 && (part || kind)) others.push({ first, every, count });
      }
    }
    return [...impression, ...others];
  }

  /** Draw as many parts as a frame can have, and the others in the frames that follow. */
  drawParts(parts) {
    const { inner, ratio, view } = this,
      [size, opacity] = this.look(),
      drawing = ++this.drawing,
      began = performance.now();
    const box = [inner.left, this.height - inner.bottom, inner.width, inner.height].map(value =>
      Math.round(value * ratio),
    );
    let end = 0,
      count = 0;
    while (end < parts.length && (!end || count + parts[end].count <= this.pace)) count += parts[end++].count;
    this.points.draw(parts.slice(0, end), {
      box,
      view,
      mixing: this.mixing,
      size: size * ratio,
      opacity,
      palette: palette(),
    });
    requestAnimationFrame(() => {
      const length = performance.now() - began;
      this.pace = length < FAST ? 2 * this.pace : length > SLOW ? Math.max(this.pace / 2, FEWEST) : this.pace;
      if (drawing !== this.drawing || !this.element.isConnected) return; // another picture was begun
      if (end < parts.length) this.drawParts(parts.slice(end));
      else this.onDrawn?.();
    });
  }

  /** The context of a canvas, without its former content, in CSS pixels. */
  cleared(canvas) {
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    return context;
  }

  /** The size and the opacity of points: larger if there are few on much space. */
  look() {
    const { view, full, inner } = this,
      wide = (view.right - view.left) / (full.right - full.left),
      high = (view.top - view.bottom) / (full.top - full.bottom);
    const dense = this.count * Math.min(wide * high, 1) * (600_000 / (inner.width * inner.height));
    for (const [most, size, opacity] of LOOKS) if (dense <= most) return [size, opacity];
    return SMALLEST;
  }

  drawOver() {
    const context = this.cleared(this.over),
      colours = themeColours();
    if (this.hovered >= 0) {
      const [x, y] = this.pixelsOf(this.hovered);
      context.lineWidth = 2;
      context.strokeStyle = colours.ink;
      context.beginPath();
      context.arc(x, y, 7, 0, 2 * Math.PI);
      context.stroke();
    }
    if (this.gestures.lasso) {
      context.lineWidth = 1.5;
      context.strokeStyle = colours.accent;
      context.fillStyle = colours.accentSoft;
      context.beginPath();
      for (const [x, y] of this.gestures.lasso) context.lineTo(x, y);
      context.closePath();
      context.fill();
      context.stroke();
    }
  }

  get inner() {
    const left = MARGIN.left,
      top = MARGIN.top,
      right = this.width - MARGIN.right,
      bottom = this.height - MARGIN.bottom;
    return { left, top, right, bottom, width: right - left, height: bottom - top };
  }

  pixelsOf(row) {
    const { inner, view } = this;
    return [
      inner.left + (inner.width * (this.x.places[row] - view.left)) / (view.right - view.left),
      inner.bottom - (inner.height * (this.y.places[row] - view.bottom)) / (view.top - view.bottom),
    ];
  }

  placeOf(x, y) {
    const { inner, view } = this;
    return [
      view.left + ((view.right - view.left) * (x - inner.left)) / inner.width,
      view.bottom + ((view.top - view.bottom) * (inner.bottom - y)) / inner.height,
    ];
  }

  /** The shown point nearest to a pixel; -1 if none is near. */
  nearest(px, py, reach = NEAR) {
    if (!this.x) return -1;
    this.grid ??= new Grid(this.x.places, this.y.places, this.full);
    const { view, inner } = this,
      scale = [inner.width / (view.right - view.left), inner.height / (view.top - view.bottom)];
    return this.grid.nearest(this.placeOf(px, py), reach, scale, row =>
      this.shown[row] ? 4 * kindOf(this.looks[row]) : -1,
    ); // rare kinds first
  }

  /** Move the view with a pointer. */
  drag(before, now) {
    const [x0, y0] = this.placeOf(...before),
      [x1, y1] = this.placeOf(...now);
    this.move(x0 - x1, y0 - y1);
  }

  move(dx, dy) {
    this.settle();
    this.view = {
      left: this.view.left + dx,
      right: this.view.right + dx,
      bottom: this.view.bottom + dy,
      top: this.view.top + dy,
    };
    this.draw();
  }

  /** Zoom around a pixel, along one axis if `only` is "x" or "y". */
  zoom(factor, pixel, only) {
    this.settle();
    const { view, full } = this,
      [cx, cy] = this.placeOf(...pixel);
    const scaled = (place, centre) => centre + (place - centre) * factor;
    if (only !== "y") Object.assign(view, { left: scaled(view.left, cx), right: scaled(view.right, cx) });
    if (only !== "x") Object.assign(view, { bottom: scaled(view.bottom, cy), top: scaled(view.top, cy) });
    const isFar =
      view.right - view.left > 4 * (full.right - full.left) || view.top - view.bottom > 4 * (full.top - full.bottom);
    if (isFar) this.view = { ...full };
    this.draw();
  }

  reset() {
    this.settle();
    this.view = { ...this.full };
    this.draw();
  }

  /** Mark a point, or none for -1. */
  point(row) {
    if (row !== this.hovered) {
      this.hovered = row;
      this.drawOver();
    }
    this.over.style.cursor = this.isSelecting ? "crosshair" : row >= 0 ? "pointer" : "grab";
    this.onHover?.(row, ...(row >= 0 ? this.pixelsOf(row) : [0, 0]));
  }

  /** Open the point at a pixel; a finger cannot point at it first, so that its first touch only does that. */
  pick(x, y, isTouch) {
    const row = this.nearest(x, y, isTouch ? 2 * NEAR : NEAR);
    if (isTouch && row !== this.hovered) this.point(row);
    else if (row >= 0) this.onPick?.(row);
  }

  /** The shown rows in the present view. */
  rowsInView() {
    return this.rowsIn(this.view);
  }

  rowsIn({ left, right, bottom, top }) {
    const { shown } = this,
      x = this.x.places,
      y = this.y.places,
      rows = [];
    for (let row = 0; row < this.count; row++) {
      if (shown[row] && x[row] >= left && x[row] <= right && y[row] >= bottom && y[row] <= top) rows.push(row);
    }
    return rows;
  }

  /** Select the shown rows inside a lasso, given its pixels. */
  select(lasso) {
    const path = lasso.map(pixel => this.placeOf(...pixel)),
      xs = path.map(([x]) => x),
      ys = path.map(([, y]) => y);
    const [left, right, bottom, top] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const rows = this.rowsIn({ left, right, bottom, top });
    this.onSelect?.(rows.filter(row => isInside(this.x.places[row], this.y.places[row], xs, ys)));
  }

  close() {
    this.observer.disconnect();
    this.points.end();
  }
}

const same = (one, other) =>
  Object.keys(one).every(side => Math.abs(one[side] - other[side]) < 1e-9 * (1 + Math.abs(other[side])));

/** The range of all values, with a little space around it. */
function widened([least, greatest], low, high) {
  const space = (greatest - least || 1) * 0.04;
  return { [low]: least - space, [high]: greatest + space };
}

const themeColours = () => ({
  line: css("--line"),
  muted: css("--muted"),
  ink: css("--ink"),
  accent: css("--accent"),
  accentSoft: css("--accent-soft"),
});
