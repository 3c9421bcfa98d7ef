// A scatter plot of millions of points: axes, and what the pointer and the keys do with it.
//
// Points are given in the order of their rows, with a kind each. Common kinds are drawn first, so that rare ones are on top.
// Moving from one pair of axes to another, or to a later state of the same points, is animated. The pointer zooms, pans,
// points and draws a lasso.

import { drawAxes, MARGIN } from "./axes.js";
import { Points } from "./points.js";

const NOWHERE = 1e30;
const CELLS = 256; // of the grid in which points are found, in each direction
const NEAR = 9; // pixels
const MOST_LOOKED_AT = 60_000; // points, to find the nearest one
const MOST_ANIMATED = 400_000; // points
const LOOKS = [[1e3, 8, 0.9], [4e3, 6.5, 0.78], [2e4, 5, 0.62], [1e5, 3.2, 0.45], [4e5, 2.4, 0.34]]; // by the greatest number of points: size and opacity

export class Scatter {
  constructor(element, { palette, colours, onHover, onPick, onSelect }) {
    this.element = element;
    this.palette = palette;
    this.colours = colours;
    Object.assign(this, { onHover, onPick, onSelect });
    const [back, canvas, over] = ["back", "points", "over"].map(name => Object.assign(document.createElement("canvas"), { className: name }));
    Object.assign(this, { back, canvas, over }); // the grid, the points, and what follows the pointer
    element.append(back, canvas, over);
    this.over.tabIndex = 0;
    this.over.setAttribute("role", "img");
    this.points = new Points(this.canvas, () => { this.upload(); this.draw(); });
    this.count = 0;
    this.view = null;
    this.full = null;
    this.mixing = 1;
    this.turn = 0; // of animations
    this.hovered = -1;
    this.lasso = null;
    this.isSelecting = false;
    this.pointers = new Map();
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(element);
    this.listen();
  }

  /** Show other points: their kinds (0 to 3), and 1 for those that are drawn as a diamond. */
  setPoints(kinds, diamonds) {
    this.count = kinds.length;
    this.kinds = kinds;
    this.diamonds = diamonds;
    const starts = new Uint32Array(5);
    for (let row = 0; row < this.count; row++) starts[kinds[row] + 1]++;
    for (let kind = 0; kind < 4; kind++) starts[kind + 1] += starts[kind];
    this.order = new Uint32Array(this.count); // rows in the order in which they are drawn
    const next = starts.slice();
    for (let row = 0; row < this.count; row++) this.order[next[kinds[row]]++] = row;
    this.x = this.y = null;
    this.shown = new Uint8Array(this.count).fill(1);
    this.hovered = -1;
  }

  /** Place the points: x and y of each row on the scales of two axes; NaN where a row has no value.
   *
   * `from` has the places from which the points move there; without it, those where they are.
   */
  setAxes(x, y, axisX, axisY, { keepView = false, animate = true, from = null } = {}) {
    const isSame = this.axisX && this.axisX.title === axisX.title && this.axisY.title === axisY.title;
    const wasFull = this.view && this.full && same(this.view, this.full);
    this.oldX = from?.[0] ?? this.x ?? x;
    this.oldY = from?.[1] ?? this.y ?? y;
    this.x = x;
    this.y = y;
    this.axisX = axisX;
    this.axisY = axisY;
    this.full = { ...extent(x, "left", "right"), ...extent(y, "bottom", "top") };
    const before = this.view;
    if (!this.view || !keepView || !isSame || wasFull) this.view = { ...this.full };
    this.grid = null;
    this.upload();
    this.settle();
    if (animate && before && this.count < MOST_ANIMATED && this.oldX.length === x.length && (this.oldX !== x || this.oldY !== y)) this.animate(before);
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
    const ordered = values => {
      const sorted = new Float32Array(this.count), order = this.order;
      for (let place = 0; place < sorted.length; place++) { const value = values[order[place]]; sorted[place] = value === value ? value : NOWHERE; }
      return sorted;
    };
    const toX = ordered(this.x), toY = ordered(this.y);
    this.points.put("toX", toX);
    this.points.put("toY", toY);
    this.points.put("fromX", this.oldX === this.x ? toX : ordered(this.oldX));
    this.points.put("fromY", this.oldY === this.y ? toY : ordered(this.oldY));
    const kinds = new Uint8Array(this.count);
    for (let place = 0; place < kinds.length; place++) kinds[place] = this.kinds[this.order[place]] + 4 * this.diamonds[this.order[place]];
    this.points.put("kind", kinds);
    this.uploadShown();
  }

  uploadShown() {
    const sorted = new Uint8Array(this.count), { x, y, order, shown } = this;
    for (let place = 0; place < sorted.length; place++) { const row = order[place]; sorted[place] = shown[row] && x[row] === x[row] && y[row] === y[row] ? 1 : 0; }
    this.points.put("shown", sorted);
  }

  /** End an animation: all points are where they belong. */
  settle() {
    this.turn++;
    this.mixing = 1;
  }

  animate(before) {
    const began = performance.now(), target = { ...this.view }, length = 420, turn = this.turn;
    this.mixing = 0;
    this.view = { ...before };
    const step = now => {
      if (turn !== this.turn) return; // the pointer or other axes have moved the view meanwhile
      const share = Math.min((now - began) / length, 1), eased = share < 0.5 ? 4 * share ** 3 : 1 - (-2 * share + 2) ** 3 / 2;
      this.mixing = eased;
      for (const side of Object.keys(target)) this.view[side] = before[side] + (target[side] - before[side]) * eased;
      this.drawNow();
      if (share < 1 && this.element.isConnected) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  resize() {
    const box = this.element.getBoundingClientRect(), ratio = Math.min(devicePixelRatio || 1, 2);
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
    requestAnimationFrame(() => { this.isDue = false; this.drawNow(); });
  }

  drawNow() {
    if (!this.view || !this.width) return;
    const { view, ratio, inner } = this, [size, opacity] = this.look();
    if (inner.width <= 0 || inner.height <= 0) return;
    const box = [inner.left, this.height - inner.bottom, inner.width, inner.height].map(value => Math.round(value * ratio));
    this.points.draw(this.count, { box, view, mixing: this.mixing, size: size * ratio, opacity, palette: this.palette() });
    drawAxes(this.cleared(this.back), this, view, this.axisX, this.axisY, this.colours());
    this.drawOver();
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
    const { view, full, inner } = this, wide = (view.right - view.left) / (full.right - full.left), high = (view.top - view.bottom) / (full.top - full.bottom);
    const dense = this.count * Math.min(wide * high, 1) * (600_000 / (inner.width * inner.height));
    for (const [most, size, opacity] of LOOKS) if (dense <= most) return [size, opacity];
    return [1.9, 0.26];
  }

  drawOver() {
    const context = this.cleared(this.over), colours = this.colours();
    if (this.hovered >= 0) {
      const [x, y] = this.pixelsOf(this.hovered);
      context.lineWidth = 2;
      context.strokeStyle = colours.ink;
      context.beginPath();
      context.arc(x, y, 7, 0, 2 * Math.PI);
      context.stroke();
    }
    if (this.lasso) {
      context.lineWidth = 1.5;
      context.strokeStyle = colours.accent;
      context.fillStyle = colours.accentSoft;
      context.beginPath();
      for (const [x, y] of this.lasso) context.lineTo(x, y);
      context.closePath();
      context.fill();
      context.stroke();
    }
  }

  get inner() {
    const left = MARGIN.left, top = MARGIN.top, right = this.width - MARGIN.right, bottom = this.height - MARGIN.bottom;
    return { left, top, right, bottom, width: right - left, height: bottom - top };
  }

  pixelsOf(row) {
    const { inner, view } = this;
    return [inner.left + inner.width * (this.x[row] - view.left) / (view.right - view.left), inner.bottom - inner.height * (this.y[row] - view.bottom) / (view.top - view.bottom)];
  }

  placeOf(x, y) {
    const { inner, view } = this;
    return [view.left + (view.right - view.left) * (x - inner.left) / inner.width, view.bottom + (view.top - view.bottom) * (inner.bottom - y) / inner.height];
  }

  /** Sort the points into cells, so that those near the pointer are found at once. */
  buildGrid() {
    const { x, y, full, count } = this, starts = new Uint32Array(CELLS * CELLS + 1), cells = new Uint16Array(count);
    const width = full.right - full.left, height = full.top - full.bottom, outside = CELLS * CELLS - 1;
    for (let row = 0; row < count; row++) {
      const column = Math.min(CELLS * (x[row] - full.left) / width | 0, CELLS - 1), line = Math.min(CELLS * (y[row] - full.bottom) / height | 0, CELLS - 1);
      const cell = x[row] === x[row] && y[row] === y[row] ? line * CELLS + column : outside;
      cells[row] = cell;
      starts[cell + 1]++;
    }
    for (let cell = 0; cell < CELLS * CELLS; cell++) starts[cell + 1] += starts[cell];
    const rows = new Uint32Array(count), next = starts.slice();
    for (let row = 0; row < count; row++) rows[next[cells[row]]++] = row;
    this.grid = { starts, rows };
  }

  /** The shown point nearest to a pixel; -1 if none is near. */
  nearest(px, py, reach = NEAR) {
    if (!this.x) return -1;
    if (!this.grid) this.buildGrid();
    const { full, x, y, view, inner } = this, [x0, y0] = this.placeOf(px - reach, py + reach), [x1, y1] = this.placeOf(px + reach, py - reach);
    const cell = (place, low, high) => Math.max(0, Math.min(CELLS - 1, Math.floor(CELLS * (place - low) / (high - low))));
    const [c0, c1, l0, l1] = [cell(x0, full.left, full.right), cell(x1, full.left, full.right), cell(y0, full.bottom, full.top), cell(y1, full.bottom, full.top)];
    const scaleX = inner.width / (view.right - view.left), scaleY = inner.height / (view.top - view.bottom), [cx, cy] = this.placeOf(px, py);
    let best = -1, distance = reach * reach, looked = 0;
    for (let line = l0; line <= l1; line++) {
      for (let place = this.grid.starts[line * CELLS + c0]; place < this.grid.starts[line * CELLS + c1 + 1]; place++) {
        if (++looked > MOST_LOOKED_AT) return best;
        const row = this.grid.rows[place];
        if (!this.shown[row]) continue;
        const dx = (x[row] - cx) * scaleX, dy = (y[row] - cy) * scaleY, found = dx * dx + dy * dy - this.kinds[row] * 4; // rare kinds first
        if (found < distance) { distance = found; best = row; }
      }
    }
    return best;
  }

  listen() {
    const over = this.over, at = event => { const box = over.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    over.addEventListener("wheel", event => {
      event.preventDefault();
      const [x, y] = at(event);
      this.zoom(Math.exp(event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), x, y, event.shiftKey ? "x" : event.altKey ? "y" : "");
    }, { passive: false });
    over.addEventListener("pointerdown", event => {
      over.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, at(event));
      this.moved = 0;
      if (this.pointers.size === 1 && (this.isSelecting || event.shiftKey)) this.lasso = [at(event)];
      else this.lasso = null;
    });
    over.addEventListener("pointermove", event => {
      const [x, y] = at(event), before = this.pointers.get(event.pointerId);
      if (before) this.drag(event.pointerId, before, [x, y]);
      else this.hover(x, y);
    });
    const up = event => {
      const place = this.pointers.get(event.pointerId);
      this.pointers.delete(event.pointerId);
      if (this.lasso && this.lasso.length > 3) this.select();
      else if (place && this.moved < (event.pointerType === "touch" ? 12 : 5) && event.type === "pointerup") this.pick(...place, event.pointerType === "touch");
      this.lasso = null;
      this.draw();
    };
    over.addEventListener("pointerup", up);
    over.addEventListener("pointercancel", up);
    over.addEventListener("pointerleave", event => { if (!this.pointers.size && event.pointerType !== "touch") this.point(-1); });
    over.addEventListener("dblclick", () => this.reset());
    over.addEventListener("keydown", event => {
      const keys = { "+": [0.8], "=": [0.8], "-": [1.25], 0: [], ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[event.key];
      if (!keys) return;
      event.preventDefault();
      if (!keys.length) this.reset();
      else if (keys.length === 1) this.zoom(keys[0], this.inner.left + this.inner.width / 2, this.inner.top + this.inner.height / 2, "");
      else this.move(keys[0] * (this.view.right - this.view.left), keys[1] * (this.view.top - this.view.bottom));
    });
  }

  drag(id, before, now) {
    this.moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
    if (this.lasso) this.lasso.push(now);
    else if (this.pointers.size === 2) {
      const other = [...this.pointers].find(([one]) => one !== id)[1], apart = point => Math.hypot(point[0] - other[0], point[1] - other[1]);
      this.zoom(apart(before) / Math.max(apart(now), 1), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2, "");
    } else if (this.moved > 4) {
      const [x0, y0] = this.placeOf(...before), [x1, y1] = this.placeOf(...now);
      this.move(x0 - x1, y0 - y1);
    }
    this.pointers.set(id, now);
    this.draw();
  }

  move(dx, dy) {
    this.settle();
    this.view = { left: this.view.left + dx, right: this.view.right + dx, bottom: this.view.bottom + dy, top: this.view.top + dy };
    this.draw();
  }

  zoom(factor, x, y, only) {
    this.settle();
    const [cx, cy] = this.placeOf(x, y), view = this.view, full = this.full;
    const scaled = (place, centre) => centre + (place - centre) * factor;
    if (only !== "y") Object.assign(view, { left: scaled(view.left, cx), right: scaled(view.right, cx) });
    if (only !== "x") Object.assign(view, { bottom: scaled(view.bottom, cy), top: scaled(view.top, cy) });
    if (view.right - view.left > 4 * (full.right - full.left) || view.top - view.bottom > 4 * (full.top - full.bottom)) this.view = { ...full };
    this.draw();
  }

  reset() {
    this.settle();
    this.view = { ...this.full };
    this.draw();
  }

  hover(x, y) {
    if (this.hoverDue) { this.hoverAt = [x, y]; return; }
    this.hoverDue = true;
    this.hoverAt = [x, y];
    requestAnimationFrame(() => { this.hoverDue = false; if (!this.pointers.size) this.point(this.nearest(...this.hoverAt)); });
  }

  point(row) {
    if (row !== this.hovered) { this.hovered = row; this.drawOver(); }
    this.over.style.cursor = this.isSelecting ? "crosshair" : row >= 0 ? "pointer" : "grab";
    this.onHover?.(row, ...(row >= 0 ? this.pixelsOf(row) : [0, 0]));
  }

  /** Open the point at a pixel; a finger cannot point at it first, so that its first touch only does that. */
  pick(x, y, isTouch) {
    const row = this.nearest(x, y, isTouch ? 2 * NEAR : NEAR);
    if (isTouch && row !== this.hovered) this.point(row);
    else if (row >= 0) this.onPick?.(row);
  }

  /** The shown rows inside of the present view. */
  rowsInView() {
    const { x, y, view, shown } = this, rows = [];
    for (let row = 0; row < this.count; row++) if (shown[row] && x[row] >= view.left && x[row] <= view.right && y[row] >= view.bottom && y[row] <= view.top) rows.push(row);
    return rows;
  }

  /** The shown rows inside the lasso. */
  select() {
    const path = this.lasso.map(([x, y]) => this.placeOf(x, y)), xs = path.map(point => point[0]), ys = path.map(point => point[1]);
    const [left, right, bottom, top] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)], rows = [];
    for (let row = 0; row < this.count; row++) {
      const x = this.x[row], y = this.y[row];
      if (this.shown[row] && x >= left && x <= right && y >= bottom && y <= top && isInside(x, y, xs, ys)) rows.push(row);
    }
    this.onSelect?.(rows);
  }

  close() {
    this.observer.disconnect();
    this.points.end();
  }
}

function isInside(x, y, xs, ys) {
  let inside = false;
  for (let one = 0, other = xs.length - 1; one < xs.length; other = one++) {
    if (ys[one] > y !== ys[other] > y && x < (xs[other] - xs[one]) * (y - ys[one]) / (ys[other] - ys[one]) + xs[one]) inside = !inside;
  }
  return inside;
}

/** The range of all values, with a little space around it. */
function extent(values, low, high) {
  let least = Infinity, greatest = -Infinity;
  for (const value of values) { if (value < least) least = value; if (value > greatest) greatest = value; }
  if (least > greatest) [least, greatest] = [0, 1];
  const space = (greatest - least || 1) * 0.04;
  return { [low]: least - space, [high]: greatest + space };
}

const same = (one, other) => Object.keys(one).every(side => Math.abs(one[side] - other[side]) < 1e-9 * (1 + Math.abs(other[side])));
