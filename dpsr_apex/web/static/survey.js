// The numbers of every stored transition: read from the bytes that the server sends, and turned into places on axes.

import { linear, log } from "./axes.js";
import { counted, css, number, rgb, whole } from "./dom.js";

const ARRAYS = { i8: BigInt64Array, u4: Uint32Array, f4: Float32Array, u2: Uint16Array, u1: Uint8Array };

/** Read a survey: its facts and its columns, which are views of the buffer. */
export function readSurvey(buffer) {
  const length = new DataView(buffer).getUint32(0, true),
    head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const columns = {};
  let place = 4 + length;
  for (const [name, kind] of Object.entries(head.columns)) {
    columns[name] = new ARRAYS[kind](buffer, place, head.rows);
    place += Math.ceil(columns[name].byteLength / 8) * 8;
  }
  return { ...head, columns };
}

// Kinds of transitions, in the order in which they are drawn: rare ones last, on top. A look is a kind, plus 4 if recycled.
export const KINDS = [
  { text: "played", colour: "--fresh", hint: "Stored by an actor as it played, with the usual reward" },
  {
    text: "recycled",
    colour: "--recycled",
    hint: "Stored by recycling: a stored state was re-entered, and another action taken. Recycled transitions are diamonds in every colour.",
  },
  {
    text: "rewarded",
    colour: "--rewarded",
    hint: "With another reward than most played transitions have or, if it is recycled, than most recycled ones",
  },
  { text: "terminal", colour: "--terminal", hint: "The last of its episode, or of a life" },
];
const REWARDED = 2,
  TERMINAL = 3,
  DIAMOND = 4;
export const kindOf = look => look % DIAMOND;
export const isTerminal = look => kindOf(look) === TERMINAL;
export const isRecycled = look => look >= DIAMOND;

/** The colours of all kinds in the present theme, as parts from 0 to 1. */
export const palette = () => KINDS.map(kind => rgb(css(kind.colour)));

/** The first row of every kind, and the number of rows; the looks are sorted by kind. */
export function startsOf(looks) {
  return [...KINDS.keys(), KINDS.length].map(kind => {
    let low = 0;
    let high = looks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (kindOf(looks[middle]) < kind) low = middle + 1;
      else high = middle;
    }
    return low;
  });
}

/** What a kind is called in a survey; null if there is nothing of this kind in it. */
export function kindText(survey, kind) {
  if (kind !== REWARDED) return KINDS[kind].text;
  const usual = [...new Set(survey.usual.filter(reward => reward !== null))];
  if (!usual.length) return null;
  return usual.length > 1 ? "unusual reward" : usual[0] ? `reward ≠ ${number(usual[0])}` : KINDS[kind].text;
}

/** How many transitions there are, of how many that are stored. */
export function countText(survey) {
  return survey.rows < survey.stored
    ? `${whole(survey.rows)} of ${counted(survey.stored, "transition")}, evenly spread`
    : counted(survey.rows, "transition");
}

export const AXES = {
  age: { title: "age in transitions (newest on the left)", scale: linear, of: ({ age }) => age },
  priority: { title: "priority (sampled more often at the top)", scale: log, of: ({ priority }) => priority },
  delta: {
    title: "|TD error| when it was last computed",
    scale: log,
    of: ({ priority }, { floor }) => priority.map(value => Math.max(value - floor, 1e-9)),
  },
  reward: { title: "reward", scale: linear, of: ({ reward }) => reward },
  gain: { title: "gain over the transition that it replaced", scale: linear, of: ({ gain }) => gain },
  position: { title: "position in the episode, in steps", scale: linear, of: ({ position }) => position },
  depth: { title: "depth: recycled steps since a played state", scale: linear, of: ({ depth }) => depth },
  recycles: { title: "states re-entered since a played state", scale: linear, of: ({ recycles }) => recycles },
  action: { title: "action", scale: linear, of: ({ action }) => action },
};
export const AXIS_NAMES = {
  age: "age",
  priority: "priority",
  delta: "|TD error|",
  reward: "reward",
  gain: "recycling gain",
  position: "position in the episode",
  depth: "depth",
  recycles: "times recycled",
  action: "action",
};
const SPREAD = { reward: 0.05, action: 0.34, depth: 0.34, recycles: 0.34 }; // whole numbers lie on lines; this spreads them

/** An axis of a survey: its title and scale, the place of every row on the scale (NaN without a value), and its extent. */
export function axisOf(survey, name, facts) {
  return { ...AXES[name], places: places(survey, name, facts), extent: extent(survey, name, facts) };
}

function places(survey, name, facts) {
  const axis = AXES[name],
    values = axis.of(survey.columns, facts),
    found = new Float32Array(survey.rows),
    spread = SPREAD[name] ?? 0;
  const isLog = axis.scale === log;
  for (let row = 0; row < found.length; row++) {
    const value = isLog ? Math.log10(values[row]) : values[row];
    found[row] = spread ? value + spread * (((row * 2654435761) >>> 0) / 4294967296 - 0.5) * 2 : value;
  }
  return found;
}

/** The places between which all rows lie, also those that were not sent. */
function extent(survey, name, facts) {
  const ranges = Object.fromEntries(
    Object.entries(survey.ranges).map(([column, range]) => [column, Float64Array.from(range ?? [])]),
  );
  const [low, high] = AXES[name].of(ranges, facts).map(AXES[name].scale.to),
    spread = SPREAD[name] ?? 0;
  return low === undefined ? [0, 1] : [low - spread, high + spread];
}
