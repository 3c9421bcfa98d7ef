// What the pointer, fingers and keys do with a scatter plot: zoom, pan, hover, pick, and draw a lasso.

const STILL = { touch: 12, mouse: 5 }; // pixels that a pointer may move in a click
const ZOOM = { "+": 0.8, "=": 0.8, "-": 1.25 };
const PAN = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] };

export class Gestures {
  constructor(scatter, element) {
    Object.assign(this, { scatter, element });
    this.lasso = null; // its pixels
    this.pointers = new Map(); // the pixel of each pointer that is down, by its identity
    this.hoverAt = null; // the pixel of a pointer that is not down
    this.isDue = false;
    element.addEventListener("wheel", event => this.wheel(event), { passive: false });
    element.addEventListener("pointerdown", event => this.down(event));
    element.addEventListener("pointermove", event => this.move(event));
    element.addEventListener("pointerup", event => this.up(event));
    element.addEventListener("pointercancel", event => this.up(event));
    element.addEventListener("pointerleave", event => this.leave(event));
    element.addEventListener("dblclick", () => scatter.reset());
    element.addEventListener("keydown", event => this.key(event));
  }

  at(event) {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  wheel(event) {
    event.preventDefault();
    const factor = Math.exp(event.deltaY * (event.deltaMode ? 0.05 : 0.0016));
    this.scatter.zoom(factor, this.at(event), event.shiftKey ? "x" : event.altKey ? "y" : "");
  }

  down(event) {
    this.element.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.at(event));
    this.moved = 0;
    const isFirst = this.pointers.size === 1;
    this.lasso = isFirst && (this.scatter.isSelecting || event.shiftKey) ? [this.at(event)] : null;
  }

  move(event) {
    const now = this.at(event),
      before = this.pointers.get(event.pointerId);
    if (before) this.drag(event.pointerId, before, now);
    else this.hover(now);
  }

  drag(id, before, now) {
    this.moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
    if (this.lasso) this.lasso.push(now);
    else if (this.pointers.size === 2) this.pinch(id, before, now);
    else if (this.moved > 4) this.scatter.drag(before, now);
    this.pointers.set(id, now);
    this.scatter.draw();
  }

  pinch(id, before, now) {
    const [, other] = [...this.pointers].find(([one]) => one !== id);
    const apart = point => Math.hypot(point[0] - other[0], point[1] - other[1]);
    const middle = [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2];
    this.scatter.zoom(apart(before) / Math.max(apart(now), 1), middle, "");
  }

  up(event) {
    const place = this.pointers.get(event.pointerId),
      isTouch = event.pointerType === "touch";
    this.pointers.delete(event.pointerId);
    const isClick = event.type === "pointerup" && this.moved < (isTouch ? STILL.touch : STILL.mouse);
    if (this.lasso?.length > 3) this.scatter.select(this.lasso);
    else if (place && isClick) this.scatter.pick(...place, isTouch);
    this.lasso = null;
    this.scatter.draw();
  }

  leave(event) {
    if (this.pointers.size || event.pointerType === "touch") return;
    this.hoverAt = null;
    this.scatter.point(-1);
  }

  hover(at) {
    this.hoverAt = at;
    this.hoverAgain();
  }

  /** Point at what is under the pointer, once in a frame. */
  hoverAgain() {
    if (this.isDue || !this.hoverAt) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      if (this.hoverAt && !this.pointers.size) this.scatter.point(this.scatter.nearest(...this.hoverAt));
    });
  }

  key(event) {
    const { inner, view } = this.scatter;
    const middle = [inner.left + inner.width / 2, inner.top + inner.height / 2];
    if (event.key === "0") this.scatter.reset();
    else if (event.key in ZOOM) this.scatter.zoom(ZOOM[event.key], middle, "");
    else if (event.key in PAN) {
      const [x, y] = PAN[event.key];
      this.scatter.move(x * (view.right - view.left), y * (view.top - view.bottom));
    } else return;
    event.preventDefault();
  }
}
