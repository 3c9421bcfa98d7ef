// What is small about every stored transition: read from the bytes that the server sends, and turned into axes.

import { linear, log } from "./axes.js";

const ARRAYS = { i8: BigInt64Array, u4: Uint32Array, f4: Float32Array, u2: Uint16Array, u1: Uint8Array };

/** Read a survey: its facts and its columns, which are views of the buffer. */
export function readSurvey(buffer) {
  const length = new DataView(buffer).getUint32(0, true), head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const columns = {};
  let place = 4 + length;
  for (const [name, kind] of Object.entries(head.columns)) {
    columns[name] = new ARRAYS[kind](buffer, place, head.rows);
    place += Math.ceil(columns[name].byteLength / 8) * 8;
  }
  return { ...head, columns };
}

const TERMINAL = 1, RECYCLED = 2; // bits of flags
const SAMPLED = 20_000; // rewards that are counted, to find the usual one

// Kinds of transitions, in the order in which they are drawn: rare ones last, on top.
export const KINDS = [
  { text: "played", colour: "--fresh", hint: "Stored by an actor as it played, with the usual reward" },
  { text: "recycled", colour: "--recycled", hint: "Stored by recycling: a stored state was re-entered, and another action taken. Recycled transitions are diamonds in every colour." },
  { text: "rewarded", colour: "--rewarded", hint: "With a reward" },
  { text: "terminal", colour: "--terminal", hint: "The last of its episode, or of a life" },
];
export const isTerminal = flags => (flags & TERMINAL) > 0;
export const isRecycled = flags => (flags & RECYCLED) > 0;

/** The reward of most transitions, such as 0, or 1 in CartPole; null if there is none. */
export function usualReward(survey) {
  const { reward } = survey.columns, counts = new Map(), every = Math.max(Math.ceil(survey.rows / SAMPLED), 1);
  let usual = 0, most = 0, all = 0;
  for (let row = 0; row < survey.rows; row += every, all++) {
    const count = (counts.get(reward[row]) ?? 0) + 1;
    counts.set(reward[row], count);
    if (count > most) { most = count; usual = reward[row]; }
  }
  return all && 2 * most <= all ? null : usual;
}

/** The kind of every row, given the usual reward: its place in KINDS. */
export function kindsOf(survey, usual) {
  const { flags, reward } = survey.columns, kinds = new Uint8Array(survey.rows), isUsual = usual === null ? () => true : value => value === usual;
  for (let row = 0; row < kinds.length; row++) kinds[row] = flags[row] & TERMINAL ? 3 : !isUsual(reward[row]) ? 2 : flags[row] & RECYCLED ? 1 : 0;
  return kinds;
}

/** 1 for every recycled row. */
export const recycledOf = survey => survey.columns.flags.map(flags => flags & RECYCLED ? 1 : 0);

export const AXES = {
  age: { title: "age, in transitions (the newest at the left)", scale: linear, of: ({ age }) => age },
  priority: { title: "priority (likelier to be sampled at the top)", scale: log, of: ({ priority }) => priority },
  delta: { title: "|TD error|, when it was computed last", scale: log, of: ({ priority }, { floor }) => priority.map(value => Math.max(value - floor, 1e-9)) },
  reward: { title: "reward", scale: linear, of: ({ reward }) => reward },
  gain: { title: "gain over the transition that it replaced", scale: linear, of: ({ gain }) => gain },
  position: { title: "position in the episode, in steps from its start", scale: linear, of: ({ position }) => position },
  depth: { title: "recycled steps since play", scale: linear, of: ({ depth }) => depth },
  recycles: { title: "states re-entered since play", scale: linear, of: ({ recycles }) => recycles },
  action: { title: "action", scale: linear, of: ({ action }) => action },
};
export const AXIS_NAMES = { age: "age", priority: "priority", delta: "|TD error|", reward: "reward", gain: "recycling gain", position: "position in the episode", depth: "depth", recycles: "times recycled", action: "action" };
const SPREAD = { reward: 0.05, action: 0.34, depth: 0.34, recycles: 0.34 }; // whole numbers lie on lines; this spreads them

/** The place of every row on an axis, as the scale has it. */
export function places(survey, name, facts) {
  const axis = AXES[name], values = axis.of(survey.columns, facts), found = new Float32Array(survey.rows), spread = SPREAD[name] ?? 0;
  const isLog = axis.scale === log;
  for (let row = 0; row < found.length; row++) {
    const value = isLog ? Math.log10(values[row]) : values[row];
    found[row] = spread ? value + spread * (((row * 2654435761) >>> 0) / 4294967296 - 0.5) * 2 : value;
  }
  return found;
}
