// What is stored about a moment.

import { counted, DASH, h, number, pageOf, signed, whole } from "./dom.js";
import { dot } from "./filters.js";
import { KINDS } from "./survey.js";

const LONGEST = 40; // components of a vector that is shown as numbers

/** What is special about a transition. */
export function marksOf({ depth, reward, terminal }) {
  const mark = (kind, text) => h("span.chip.plain", { title: KINDS[kind].hint }, dot(kind, kind === 1), text);
  return [
    depth > 0 ? mark(1, "recycled") : mark(0, "played"),
    reward ? mark(2, `reward ${signed(reward)}`) : null,
    terminal ? mark(3, "terminal") : null,
  ];
}

/** The frames and facts of a moment; `overlay` covers its newest frame, and `verified` is below. */
export function storedPanel({ moment, environment, run }, overlay, verified) {
  const action = environment.actions[moment.action] ?? `action ${moment.action}`;
  return h(
    "section.panel.stored",
    {},
    h("h2", {}, "What is stored"),
    filmstrip(moment, action, overlay),
    vectorTable(moment),
    factList(moment, action, run),
    verified,
  );
}

function filmstrip(moment, action, overlay) {
  const frame = (data, label, ...more) =>
    h(
      "figure",
      {},
      h("div.framed", {}, h("img.pixel", { src: `data:image/png;base64,${data}`, alt: label }), more),
      h("figcaption", {}, label),
    );
  const count = moment.frames.length - 1;
  const earlier = moment.frames.slice(0, -1).map((data, place) => frame(data, `${count - place} earlier`));
  const after = moment.n_steps > 1 ? `after ${moment.n_steps} steps` : "next";
  const arrow = h(
    "div.arrow",
    {},
    h("b", {}, action),
    h("span", { "aria-hidden": "true" }, "→"),
    h("span.muted", {}, `reward ${number(moment.reward)}`),
  );
  const next = frame(moment.next.at(-1), moment.terminal ? "end" : after);
  return h(
    "div.filmstrip",
    {},
    count ? h("div.earlier", {}, earlier) : null,
    h("div.step", {}, frame(moment.frames.at(-1), "now", overlay), arrow, next),
  );
}

function vectorTable({ vectors }) {
  if (!vectors) return null;
  const [s, next] = vectors.map(stack => stack.at(-1));
  if (!Array.isArray(s) || s.length > LONGEST) return null;
  const row = (name, values) =>
    h(
      "tr",
      {},
      h("th", {}, name),
      values.map(value => h("td.figure", {}, number(value, 3))),
    );
  return h("div.scroll", {}, h("table.vector", {}, h("tbody", {}, row("s", s), row("s′", next))));
}

function factList(moment, action, run) {
  const fact = (name, value, note) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, note ? h("span.muted", {}, ` ${note}`) : null));
  return h(
    "dl.facts",
    {},
    fact("Action", action),
    fact("Reward", number(moment.reward), moment.n_steps > 1 ? `over n = ${moment.n_steps} steps` : "n = 1"),
    fact("Priority", number(moment.priority)),
    fact("Age", whole(moment.age), "transitions"),
    fact("Inserted", `t = ${whole(moment.birth)}`),
    fact("Position in the episode", counted(moment.episode_step, "step")),
    fact("Lineage", lineage(moment, run)),
    fact("Gain", moment.gain === null ? DASH : signed(moment.gain)),
    fact("Snapshot", moment.snapshot_bytes ? `${whole(moment.snapshot_bytes)} bytes` : "none"),
  );
}

function lineage({ recycles, origin, depth, source }, run) {
  if (!depth) return "played by an actor";
  const link = {
    href: pageOf(run, "moment", `${origin}?at=${encodeURIComponent(source)}`),
    title: "Open the transition whose state was re-entered, if it is still stored",
  };
  const times = recycles === 1 ? "once" : `${recycles} times`,
    last = recycles === 1 ? ", from " : ", the last time from ";
  const from = origin === "-1" ? [] : [last, h("a.link", link, origin)];
  return [...(recycles ? [`re-entered ${times}`, ...from] : ["recycled"]), `; depth ${whole(depth)}`];
}
