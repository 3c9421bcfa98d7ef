// The starred moments of a run, with notes; they can be exported as starting states.

import {
  attempt,
  change,
  counted,
  download,
  h,
  icon,
  json,
  number,
  pageOf,
  replace,
  runUrl,
  signed,
  whole,
} from "./dom.js";
import { heading, tabs } from "./heading.js";

export async function showStars(page, { run, session, stillHere }) {
  const [facts, { stars }] = await Promise.all([json(runUrl(run, "facts")), json(runUrl(run, "stars"))]);
  if (!stillHere()) return undefined;
  const view = new StarsView(page, { run, session, facts, stars });
  attempt(async () => {
    const environment = await json(runUrl(run, "environment"));
    if (stillHere()) view.nameActions(environment.actions);
  });
  return undefined;
}

class StarsView {
  constructor(page, given) {
    Object.assign(this, given);
    this.actions = []; // names, once they are known
    this.selected = new Set();
    this.list = h("div.star-list", {});
    this.count = h("span.muted", {});
    this.usage = h("section.usage", {});
    this.file = h("button.primary", { onclick: () => this.exportFile() });
    const exported = {
      title: "One HTML file with the map and the stars, which works without a server",
      onclick: () => download(runUrl(this.run, "export")),
    };
    replace(
      page,
      heading(this.facts, null, [h("button", exported, icon("grid"), "Export page"), this.file]),
      tabs(this.run, "stars"),
      h("div.bar", {}, h("h2", {}, "Starred moments"), this.count),
      this.list,
      this.usage,
    );
    this.draw();
  }

  nameActions(names) {
    this.actions = names;
    this.draw();
  }

  exportFile() {
    const query = [...this.selected].map(id => `id=${id}`).join("&");
    download(runUrl(this.run, "stars", `file${query ? `?${query}` : ""}`));
  }

  draw() {
    const { selected, stars } = this;
    this.count.textContent = stars.length ? counted(stars.length, "moment") : "";
    this.file.disabled = !stars.length;
    const what = selected.size ? counted(selected.size, "starting state") : "starting states";
    replace(this.file, icon("save"), `Export ${what}`);
    replace(this.list, stars.length ? stars.map(star => this.card(star)) : this.hint());
    replace(this.usage, stars.length ? this.commands() : null);
  }

  hint() {
    const how =
      "Open one from the map and star it. It is kept here with its snapshot, even after the replay has replaced it.";
    return h(
      "section.empty.panel",
      {},
      icon("star"),
      h("p", {}, "No moment is starred yet."),
      h("p.muted", {}, how),
      h("a.button", { href: pageOf(this.run, "map") }, "Open the map"),
    );
  }

  /** The commands that use an exported file. */
  commands() {
    const { run, session } = this,
      folder = session.single ? session.root : `${session.root}/${run}`;
    const file = `${run
      .split("/")
      .at(-1)
      .replace(/[^\p{L}\p{N}\-_.]/gu, "-")}-moments.safetensors`;
    const lines = [
      `dpsr-apex eval ${quoted(folder)} --from ${file}`,
      `dpsr-apex train ${quoted(`${folder}/config.toml`)} --start-from ${file}`,
    ];
    return [
      h("h2", {}, "Using an exported file"),
      h("p.muted.small", {}, "Evaluate the agent from these starting states, or train from before a failure:"),
      h("pre", {}, lines.join("\n")),
    ];
  }

  card(star) {
    const href = pageOf(this.run, "moment", `${star.identity}?at=starred`);
    const strip = {
      src: runUrl(this.run, "strip", `${star.identity}.png?at=starred`),
      alt: "Frames of the moment",
      loading: "lazy",
    };
    return h(
      "article.panel.starred",
      {},
      this.box(star),
      h("a", { href }, h("img", strip)),
      h(
        "div.grow",
        {},
        h("a", { href }, h("b", {}, `Moment ${star.identity}`)),
        h("p.muted.small", {}, this.factsOf(star)),
        this.note(star),
      ),
      this.session.may_change ? this.remover(star) : null,
    );
  }

  factsOf({ action, reward, terminal, priority, t, gain }) {
    const facts = [
      this.actions[action] ?? `action ${action}`,
      `reward ${number(reward)}`,
      terminal ? "terminal" : null,
      `priority ${number(priority)}`,
      `t = ${whole(t)}`,
      gain === null ? null : `gain ${signed(gain)}`,
    ];
    return facts.filter(Boolean).join(" · ");
  }

  box({ identity }) {
    const select = event => {
      if (event.target.checked) this.selected.add(identity);
      else this.selected.delete(identity);
      this.draw();
    };
    const checked = this.selected.has(identity);
    return h("input", { type: "checkbox", checked, "aria-label": `Select moment ${identity}`, onchange: select });
  }

  note({ identity, note }) {
    const field = h("textarea", {
      rows: 2,
      maxLength: 2000,
      "aria-label": "Note",
      placeholder: "A note about this moment",
      disabled: !this.session.may_change,
      onchange: () => this.send(identity, "POST", { note: field.value }),
    });
    field.value = note;
    return field;
  }

  remover({ identity }) {
    const remove = async () => {
      await this.send(identity, "DELETE");
      this.selected.delete(identity);
      this.draw();
    };
    const attributes = { "aria-label": "Remove the star", title: "Remove the star", onclick: remove };
    return h("button.quiet.round", attributes, icon("close"));
  }

  /** Change a star. */
  send(identity, method, content) {
    return attempt(async () => {
      this.stars = (await change(runUrl(this.run, "stars", identity), method, content)).stars;
    });
  }
}

/** A path as one word of a shell. */
const quoted = path => (/^[\w./-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`);
