// The exported page of one run: its map and its stars, without a server.

import { h, number, whole } from "./dom.js";
import { Legend } from "./filters.js";
import { Scatter } from "./scatter.js";
import { AXIS_NAMES, axisOf, countText, readSurvey } from "./survey.js";
import { factsOf, Tip } from "./tip.js";

const facts = JSON.parse(document.getElementById("facts").textContent);
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";

const survey = readSurvey(Uint8Array.from(atob(facts.survey), letter => letter.charCodeAt(0)).buffer);
const axes = { x: "age", y: "priority" };
const page = document.getElementById("page"),
  plot = h("div.scatter", {}),
  tip = new Tip();

const choice = side => {
  const change = () => {
    axes[side] = select.value;
    place(true);
  };
  const options = Object.entries(AXIS_NAMES).map(([value, text]) => h("option", { value }, text));
  const select = h("select", { "aria-label": `${side}-axis`, onchange: change }, options);
  select.value = axes[side];
  return h("label.axis", {}, `${side}-axis`, select);
};

const legend = new Legend(() => {
  const accepts = legend.condition(survey.columns) ?? (() => true);
  scatter.setShown(Uint8Array.from({ length: survey.rows }, (_, row) => (accepts(row) ? 1 : 0)));
});
legend.draw(survey);

const source = `replay at t = ${whole(survey.t)} · ${countText(survey)} · dpsr_apex ${facts.version}`;
page.append(
  h("div.bar", {}, h("h1", {}, `${facts.environment} · ${facts.method}`)),
  h("p.subtitle", {}, `${facts.run} · seed ${facts.seed} · ${source}`),
  h("div.toolbar", {}, choice("x"), choice("y"), legend.element),
  plot,
  h("p.muted.small", {}, "Each point is a stored transition. Scroll to zoom, drag to pan."),
);
const scatter = new Scatter(plot, {
  onHover: (row, x, y) => (row < 0 ? tip.hide() : tip.show(factsOf(survey, row, facts.actions), scatter, x, y)),
});
plot.append(tip.element);

function place(animate) {
  scatter.setAxes(axisOf(survey, axes.x, facts), axisOf(survey, axes.y, facts), { animate });
}

function star({ identity, action, reward, terminal, priority, note, strip }) {
  const outcome = `${facts.actions[action] ?? ""} → reward ${number(reward)}${terminal ? ", terminal" : ""}`;
  return h(
    "article.panel.starred",
    {},
    h("img", { src: `data:image/png;base64,${strip}`, alt: "Frames of the moment" }),
    h(
      "div.grow",
      {},
      h("b", {}, `Moment ${identity}`),
      h("p.muted.small", {}, `${outcome} · priority ${number(priority)}`),
      h("p", {}, note),
    ),
  );
}

scatter.setPoints(survey.columns.look);
place(false);
if (facts.stars.length) {
  page.append(h("h2.section", {}, "Starred moments"), h("div.star-list", {}, facts.stars.map(star)));
}
