// The frames of a play: a tree, of which each frame can be continued.

export class Frames {
  constructor() {
    this.all = new Map(); // by number
    this.tip = null; // the frame from which a step would continue
    this.shown = null;
  }

  get size() {
    return this.all.size;
  }

  get(number) {
    return this.all.get(number);
  }

  /** Add a frame from the emulator, which is then the tip; return whether it is new. */
  add(head, parts) {
    const known = this.get(head.frame),
      follows = this.shown === this.tip || this.tip === null;
    this.all.set(head.frame, { ...head, parts, children: known?.children ?? [] });
    if (!known && head.parent !== null) this.get(head.parent)?.children.push(head.frame);
    this.tip = head.frame;
    if (follows) this.shown = head.frame;
    return !known;
  }

  /** The frame that follows on the path that is shown. */
  nextOf(number) {
    let frame = this.end;
    while (frame && frame.parent !== number) frame = this.get(frame.parent);
    return frame;
  }

  /** The last frame of the branch that is shown. */
  get end() {
    let frame = this.get(this.shown);
    for (let one = this.get(this.tip); one; one = this.get(one.parent)) if (one === frame) return this.get(this.tip);
    while (frame?.children.length) frame = this.get(frame.children.at(-1));
    return frame ?? this.get(this.tip);
  }

  /** The frames of the branch that is shown, from the moment to its end. */
  path() {
    const path = [];
    for (let frame = this.end; frame; frame = this.get(frame.parent)) path.push(frame);
    return path.reverse();
  }

  /** The last frames of all branches. */
  ends() {
    return [...this.all.values()].filter(frame => !frame.children.length);
  }

  /** Whether the game is over in the frame that is shown; true if there is none. */
  get isOver() {
    return this.get(this.shown)?.players.every(player => player.over) ?? true;
  }
}
