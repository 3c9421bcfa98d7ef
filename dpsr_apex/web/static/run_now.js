// What a run is doing now: its progress, its newest numbers, and its actors.

import { duration, h, number, percent, short, signed, whole } from "./dom.js";

const LATE = 3; // seconds of silence of an actor
const NOW = 1.5; // seconds

export function progressOf(line, { row, stats, left }) {
  const running = line.state === "running";
  const done = Math.max(line.done, stats && line.unit === "transitions" ? stats.t : 0);
  const share = Math.min(done / line.goal, 1);
  const elapsed = row.elapsed_seconds === undefined ? null : duration(row.elapsed_seconds);
  const parts = [
    `${whole(done)} of ${whole(line.goal)} ${line.unit}`,
    percent(share, share < 1 ? 1 : 0),
    running && left ? `${left} left` : null,
    elapsed && (running ? `${elapsed} so far` : `took ${elapsed}`),
    line.note,
  ];
  return [
    h("div.meter.big", {}, h("i", { style: { width: `${100 * share}%` } })),
    h("p.muted", {}, parts.filter(Boolean).join(" · ")),
  ];
}

/** Cards with the newest numbers; `lastReturn` is the newest mean return, `evaluation` the newest one if there is one. */
export function cardsOf({ row, stats }, { lastReturn, evaluation, capacity }) {
  const card = (name, value, note) =>
    h("div.card", {}, h("span.label", {}, name), h("b", {}, value), h("span.muted", {}, note));
  const gain = row.recycled
    ? `mean gain ${signed(row.recycled_gain / row.recycled)}`
    : `${whole(row.rounds_opened)} rounds`;
  const target = stats?.steps_per_update ? `target ${stats.steps_per_update}` : "free running";
  return [
    card("Return", number(lastReturn, 4), `best ${number(row.return_best, 4)} · ${whole(row.episodes)} episodes`),
    card("Evaluation", number(evaluation?.mean, 4), evaluation ? `at t = ${whole(evaluation.t)}` : "none yet"),
    card("Speed", `${short(row.steps_per_second)}/s`, `${short(row.updates_per_second)} updates/s`),
    card("Loss", number(row.loss, 3), `mean Q ${number(row.mean_q, 3)}`),
    card("Replay", percent(row.fill), `${whole(stats?.stored ?? row.stored)} of ${whole(capacity)}`),
    card("Recycled", whole(row.recycled), gain),
    stats
      ? card("Policy age", number(row.policy_age_mean, 3), `p95 ${number(row.policy_age_p95, 3)} updates`)
      : card("Exploration", number(row.epsilon, 3), "ε"),
    card("Steps per update", number(stats?.achieved ?? row.steps_per_update, 3), stats ? target : ""),
  ];
}

export function actorTable({ actors, learner_waiting: waiting }) {
  const names = ["Actor", "Steps/s", "ε", "Sent", "Recycles", "Heard"];
  const heads = names.map((name, place) => h(place ? "th.figure" : "th", {}, name));
  const wait = waiting === null ? "" : `The learner spends ${percent(waiting)} of the time waiting.`;
  return [
    h("div.scroll", {}, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, actors.map(actorRow)))),
    h("p.muted.small", {}, wait),
  ];
}

function actorRow(actor) {
  const silence = actor.heard_seconds_ago;
  const [low, high] = [number(actor.epsilon_low, 2), number(actor.epsilon_high, 2)];
  const figures = [
    number(actor.speed, 3),
    low === high ? low : `${low}–${high}`,
    short(actor.sent),
    whole(actor.recycling),
    silence < NOW ? "now" : `${Math.round(silence)} s ago`,
  ];
  const name = h("td", {}, actor.name, actor.host ? ` at ${actor.host}` : "");
  return h(
    "tr",
    { class: silence > LATE ? "late" : "" },
    name,
    figures.map(figure => h("td.figure", {}, figure)),
  );
}
