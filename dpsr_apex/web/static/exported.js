// The exported page of one run: its map and its stars, without a server.

import { css, h, number, rgb, short, signed, whole } from "./dom.js";
import { AXES, AXIS_NAMES, countText, extent, isRecycled, isTerminal, kindOf, KINDS, kindText, places, readSurvey } from "./survey.js";
import { Scatter } from "./scatter.js";

const facts = JSON.parse(document.getElementById("facts").textContent);
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";

const survey = readSurvey(Uint8Array.from(atob(facts.survey), letter => letter.charCodeAt(0)).buffer);
const axes = { x: "age", y: "priority" }, wanted = new Set(KINDS.keys());
const plot = h("div.scatter", {}), tip = h("div.tip", { hidden: true });

const choice = side => {
  const select = h("select", { "aria-label": `${side}-axis`, onchange: () => { axes[side] = select.value; place(true); } }, Object.entries(AXIS_NAMES).map(([value, text]) => h("option", { value }, text)));
  select.value = axes[side];
  return select;
};
const legend = h("div.chips", {}, KINDS.map((kind, place) => {
  if (!kindText(survey, place)) return null;
  const chip = h("button.chip", { "aria-pressed": "true", title: kind.hint, style: { "--dot": `var(${kind.colour})` }, onclick: () => { if (!wanted.delete(place)) wanted.add(place); chip.setAttribute("aria-pressed", String(wanted.has(place))); scatter.setShown(survey.columns.look.map(look => wanted.has(kindOf(look)) ? 1 : 0)); } },
    h(`i.dot${place === 1 ? ".diamond" : ""}`, {}), kindText(survey, place), h("span.muted", {}, short(survey.kinds[place])));
  return chip;
}));
document.getElementById("page").append(
  h("div.bar", {}, h("h1", {}, `${facts.environment} · ${facts.method}`)),
  h("p.subtitle", {}, `${facts.run} · seed ${facts.seed} · replay at t = ${whole(survey.t)} · ${countText(survey)} · dpsr_apex ${facts.version}`),
  h("div.toolbar", {}, h("label.axis", {}, "x-axis", choice("x")), h("label.axis", {}, "y-axis", choice("y")), legend), plot,
  h("p.muted.small", {}, "Each point is a stored transition. Scroll to zoom, drag to pan."));
const scatter = new Scatter(plot, {
  palette: () => KINDS.map(kind => rgb(css(kind.colour))),
  colours: () => ({ line: css("--line"), muted: css("--muted"), ink: css("--ink"), accent: css("--accent"), accentSoft: css("--accent-soft") }),
  onHover: hover,
});
plot.append(tip);

function place(animate) {
  const axis = name => ({ ...AXES[name], places: places(survey, name, facts), extent: extent(survey, name, facts) });
  scatter.setAxes(axis(axes.x), axis(axes.y), { animate });
}

function hover(row, x, y) {
  tip.hidden = row < 0;
  if (row < 0) return;
  const { columns } = survey, gain = columns.gain[row];
  tip.replaceChildren(h("p", {}, h("b", {}, facts.actions[columns.action[row]] ?? ""), ` → reward ${number(columns.reward[row])}${isTerminal(columns.look[row]) ? ", terminal" : ""}`),
    h("p.muted", {}, `priority ${number(columns.priority[row])} · age ${whole(columns.age[row])} · step ${whole(columns.position[row])} of its episode`),
    isRecycled(columns.look[row]) ? h("p.muted", {}, `recycled${gain === gain ? `, gain ${signed(gain)}` : ""}`) : "");
  tip.style.left = `${Math.max(Math.min(x, scatter.width - tip.offsetWidth / 2), tip.offsetWidth / 2)}px`;
  tip.style.top = `${y}px`;
  tip.classList.toggle("below", y < scatter.height / 2);
}

const star = one => h("article.panel.starred", {}, h("img", { src: `data:image/png;base64,${one.strip}`, alt: "Frames of the moment" }),
  h("div.grow", {}, h("b", {}, `Moment ${one.identity}`), h("p.muted.small", {}, `${facts.actions[one.action] ?? ""} → reward ${number(one.reward)}${one.terminal ? ", terminal" : ""} · priority ${number(one.priority)}`), h("p", {}, one.note)));

scatter.setPoints(survey.columns.look);
place(false);
if (facts.stars.length) document.getElementById("page").append(h("h2.section", {}, "Starred moments"), h("div.star-list", {}, facts.stars.map(star)));
