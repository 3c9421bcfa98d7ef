// The starred moments of a run, with notes; they can be exported as starting states.

import { attempt, change, counted, download, h, icon, json, number, pageOf, replace, runUrl, signed, whole } from "./dom.js";
import { heading, tabs } from "./run.js";

export async function showStars(page, { run, session, stillHere }) {
  const [facts, found] = await Promise.all([json(runUrl(run, "facts")), json(runUrl(run, "stars"))]);
  if (!stillHere()) return undefined;
  let stars = found.stars, actions = [];
  const chosen = new Set(), list = h("div.star-list", {}), count = h("span.muted", {});
  const file = h("button.primary", { onclick: () => download(runUrl(run, "stars", `file${chosen.size ? `?${[...chosen].map(id => `id=${id}`).join("&")}` : ""}`)) }, icon("save"), "Export starting states");
  const use = h("section.usage", {});
  replace(page,
    heading(facts, null, [h("button", { title: "One HTML file with the map and the stars, which works without a server", onclick: () => download(runUrl(run, "export")) }, icon("grid"), "Export page"), file]), tabs(run, "stars"),
    h("div.bar", {}, h("h2", {}, "Starred moments"), count), list, use);

  function draw() {
    count.textContent = stars.length ? counted(stars.length, "moment") : "";
    file.disabled = !stars.length;
    replace(file, icon("save"), chosen.size ? `Export ${counted(chosen.size, "starting state")}` : "Export starting states");
    if (!stars.length) replace(list, h("section.empty.panel", {}, icon("star"), h("p", {}, "No moment is starred yet."), h("p.muted", {}, "Open one from the map and star it. It is kept here with its snapshot, even after the replay has replaced it."), h("a.button", { href: pageOf(run, "map") }, "Open the map")));
    else replace(list, stars.map(card));
    const folder = session.single ? session.root : `${session.root}/${run}`, exported = `${run.split("/").at(-1).replace(/[^\p{L}\p{N}\-_.]/gu, "-")}-moments.safetensors`;
    replace(use, stars.length ? [h("h2", {}, "Using an exported file"), h("p.muted.small", {}, "Evaluate the agent from these starting states, or train from before a failure:"), h("pre", {}, `dpsr-apex eval ${quoted(folder)} --from ${exported}\ndpsr-apex train ${quoted(`${folder}/config.toml`)} --start-from ${exported}`)] : []);
  }

  function card(star) {
    const note = h("textarea", { rows: 2, maxLength: 2000, "aria-label": "Note", placeholder: "A note about this moment", disabled: !session.may_change, onchange: () => attempt(async () => { stars = (await change(runUrl(run, "stars", star.identity), "POST", { note: note.value })).stars; }) });
    note.value = star.note;
    const box = h("input", { type: "checkbox", checked: chosen.has(star.identity), "aria-label": `Select moment ${star.identity}`, onchange: () => { if (box.checked) chosen.add(star.identity); else chosen.delete(star.identity); draw(); } });
    return h("article.panel.starred", {}, box, h("a", { href: pageOf(run, "moment", `${star.identity}?at=starred`) }, h("img", { src: runUrl(run, "strip", `${star.identity}.png?at=starred`), alt: "Frames of the moment", loading: "lazy" })),
      h("div.grow", {}, h("a", { href: pageOf(run, "moment", `${star.identity}?at=starred`) }, h("b", {}, `Moment ${star.identity}`)), h("p.muted.small", {}, `${actions[star.action] ?? `action ${star.action}`} · reward ${number(star.reward)}${star.terminal ? " · terminal" : ""} · priority ${number(star.priority)} · t = ${whole(star.t)}${star.gain === null ? "" : ` · gain ${signed(star.gain)}`}`), note),
      session.may_change ? h("button.quiet.round", { "aria-label": "Remove the star", title: "Remove the star", onclick: () => attempt(async () => { stars = (await change(runUrl(run, "stars", star.identity), "DELETE")).stars; chosen.delete(star.identity); draw(); }) }, icon("close")) : null);
  }

  draw();
  attempt(async () => { actions = (await json(runUrl(run, "environment"))).actions; if (stillHere()) draw(); });
  return undefined;
}

/** A path as one word of a shell. */
const quoted = path => /^[\w./-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
