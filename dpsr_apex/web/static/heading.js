// The head of the pages of a run: its name and the tabs.

import { h, pageOf } from "./dom.js";

/** The name of a run and what it is, with more at both ends of the line. */
export const heading = (facts, left, right) =>
  h(
    "div.bar.heading",
    {},
    h("h1", {}, facts.run),
    left,
    h("span.muted", {}, `${facts.environment} · ${facts.method} · ${facts.agent} · seed ${facts.seed}`),
    h("span.grow", {}),
    right,
  );

export function tabs(run, active) {
  const tab = (name, href, id) => h("a", { href, "aria-current": active === id ? "page" : null }, name);
  return h(
    "nav.tabs",
    {},
    tab("Overview", pageOf(run), "run"),
    tab("Replay map", pageOf(run, "map"), "map"),
    tab("Stars", pageOf(run, "stars"), "stars"),
  );
}
