// The connection to the emulator process of the run whose map or moments are open.

import { runUrl } from "./dom.js";
import { Wire } from "./wire.js";

let kept = null; // from one moment of a run to the next, because its process is ready

/** Start the emulator process of a run before it is needed. */
export const warmUp = run => {
  connection(run);
};

/** End the connection, unless it is to this run. */
export function keepOnly(run) {
  if (kept && kept.run !== run) {
    kept.close();
    kept = null;
  }
}

/** The connection of this run: the present one, or a new one. */
export function connection(run) {
  if (kept?.run === run && !kept.ended) return kept;
  kept?.close();
  const wire = new Wire(
    runUrl(run, "play"),
    (head, parts) => {
      if (wire.owner) wire.owner.take(head, parts);
      else wire.early.push([head, parts]);
    },
    reason => {
      wire.ended = true;
      wire.owner?.ended(reason);
    },
  );
  Object.assign(wire, { run, early: [], owner: null, ended: false });
  kept = wire;
  return wire;
}

addEventListener("pagehide", () => kept?.close());
