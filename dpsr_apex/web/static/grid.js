// Points sorted into the cells of a grid, so that those near the pointer are found at once.

const CELLS = 256; // in each direction
const MOST_LOOKED_AT = 60_000; // points, to find the nearest one

export class Grid {
  /** `full` has the places at the edges of the grid. */
  constructor(x, y, full) {
    Object.assign(this, { x, y, full });
    const count = x.length,
      cells = new Uint16Array(count),
      starts = new Uint32Array(CELLS * CELLS + 1),
      outside = CELLS * CELLS - 1;
    const width = full.right - full.left,
      height = full.top - full.bottom;
    for (let row = 0; row < count; row++) {
      const column = Math.min(((CELLS * (x[row] - full.left)) / width) | 0, CELLS - 1),
        line = Math.min(((CELLS * (y[row] - full.bottom)) / height) | 0, CELLS - 1);
      const cell = x[row] === x[row] && y[row] === y[row] ? line * CELLS + column : outside;
      cells[row] = cell;
      starts[cell + 1]++;
    }
    for (let cell = 0; cell < CELLS * CELLS; cell++) starts[cell + 1] += starts[cell];
    const next = starts.slice();
    this.starts = starts;
    this.rows = new Uint32Array(count);
    for (let row = 0; row < count; row++) this.rows[next[cells[row]]++] = row;
  }

  /** The row nearest to a place, within `reach` pixels; -1 if there is none.
   *
   * `scale` has the pixels of a unit across and up; `advantage` of a row is subtracted from its squared distance in
   * pixels, and a row with a negative one is not found.
   */
  nearest([cx, cy], reach, [scaleX, scaleY], advantage) {
    const { full, rows, starts, x, y } = this;
    const cell = (place, low, high) =>
      Math.max(0, Math.min(CELLS - 1, Math.floor((CELLS * (place - low)) / (high - low))));
    const [c0, c1] = [cx - reach / scaleX, cx + reach / scaleX].map(place => cell(place, full.left, full.right));
    const [l0, l1] = [cy - reach / scaleY, cy + reach / scaleY].map(place => cell(place, full.bottom, full.top));
    let best = -1,
      distance = reach * reach,
      looked = 0;
    for (let line = l0; line <= l1; line++) {
      for (let place = starts[line * CELLS + c0]; place < starts[line * CELLS + c1 + 1]; place++) {
        if (++looked > MOST_LOOKED_AT) return best;
        const row = rows[place],
          gained = advantage(row);
        if (gained < 0) continue;
        const dx = (x[row] - cx) * scaleX,
          dy = (y[row] - cy) * scaleY,
          found = dx * dx + dy * dy - gained;
        if (found < distance) {
          distance = found;
          best = row;
        }
      }
    }
    return best;
  }
}

/** Whether a place is inside of a closed path. */
export function isInside(x, y, xs, ys) {
  let inside = false;
  for (let one = 0, other = xs.length - 1; one < xs.length; other = one++) {
    if (ys[one] > y !== ys[other] > y && x < ((xs[other] - xs[one]) * (y - ys[one])) / (ys[other] - ys[one]) + xs[one])
      inside = !inside;
  }
  return inside;
}
