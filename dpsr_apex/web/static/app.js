// The pages, and navigation between them. Each page is a function that fills an element and returns what ends it.

import { keepOnly } from "./connection.js";
import { h, icon, json, problemPage, replace } from "./dom.js";
import { showCompare } from "./compare.js";
import { showMap } from "./map.js";
import { showMoment } from "./moment.js";
import { showRun } from "./run.js";
import { showRuns } from "./runs.js";
import { showStars } from "./stars.js";

const top = document.getElementById("top"),
  page = document.getElementById("page");
export let session = null;
let leave = null,
  turn = 0;

/** Which page an address is; null if there is none. */
function route(path) {
  if (path === "/" && session.single) return { show: showRun, run: session.single };
  if (path === "/") return { show: showRuns };
  if (path === "/compare") return { show: showCompare };
  const found = path.match(/^\/run\/(.+?)(?:\/(map|stars|moment\/(\d+)))?\/?$/);
  if (!found) return null;
  const run = decoded(found[1]);
  if (run === null) return null;
  const show = !found[2] ? showRun : found[3] ? showMoment : { map: showMap, stars: showStars }[found[2]];
  return { show, run, id: found[3], part: found[3] ? "moment" : found[2] };
}

/** A name from an address; null if it is not encoded correctly. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

async function open() {
  const now = ++turn;
  leave?.();
  leave = null;
  const found = route(location.pathname);
  drawTop(found);
  document.body.classList.add("loading");
  keepOnly(found?.part === "map" || found?.part === "moment" ? found.run : null);
  if (!found) {
    document.body.classList.remove("loading");
    replace(page, problemPage("There is no such page", location.pathname));
    return;
  }
  try {
    const left = await found.show(page, {
      ...found,
      session,
      query: new URLSearchParams(location.search),
      stillHere: () => now === turn,
    });
    if (now === turn) leave = left;
    else left?.();
  } catch (error) {
    if (now === turn && error.name !== "AbortError")
      replace(
        page,
        problemPage("This page cannot be shown", error.message, found.part === "moment" ? found.run : null),
      );
  } finally {
    if (now === turn) document.body.classList.remove("loading");
  }
}

export function go(url, { replaced = false } = {}) {
  if (replaced) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  open().then(() => {
    if (replaced) return;
    page.focus({ preventScroll: true }); // so that the keyboard and a screen reader continue in the new page
    scrollTo(0, 0);
  });
}

function drawTop(found) {
  const crumbs = [];
  if (!session.single) crumbs.push(h("a", { href: "/" }, "Runs"));
  if (found?.run) {
    const base = session.single ? "/" : `/run/${found.run.split("/").map(encodeURIComponent).join("/")}`;
    crumbs.push(h("a", { href: base }, found.run));
    if (found.part)
      crumbs.push(h("span", {}, { map: "Replay map", stars: "Stars", moment: `Moment ${found.id}` }[found.part]));
  } else if (location.pathname === "/compare") crumbs.push(h("span", {}, "Compare"));
  const parts = crumbs.flatMap((crumb, place) => (place ? [h("span.slash", {}, "/"), crumb] : [crumb]));
  replace(
    top,
    h(
      "a.brand",
      { href: "/", title: "Replay explorer" },
      h("img", { src: "/static/icon.svg", alt: "", width: 22, height: 22 }),
      h("b", {}, "Replay explorer"),
    ),
    h("nav.crumbs", { "aria-label": "Breadcrumbs" }, parts),
    session.may_change
      ? null
      : h(
          "span.badge",
          { title: "To star moments and change runs, open the address that the command printed, with its token." },
          "read only",
        ),
    h(
      "button.quiet.round",
      { title: "Light or dark theme", "aria-label": "Light or dark theme", onclick: switchTheme },
      icon("sun"),
      icon("moon"),
    ),
  );
  document.title = [found?.id ? `Moment ${found.id}` : null, found?.run, "Replay explorer"].filter(Boolean).join(" · ");
}

function switchTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
  dispatchEvent(new Event("theme"));
}

addEventListener("click", event => {
  const link = event.target.closest?.("a[href^='/']");
  if (
    !link ||
    event.defaultPrevented ||
    event.button ||
    event.metaKey ||
    event.ctrlKey ||
    event.shiftKey ||
    link.hasAttribute("download")
  )
    return;
  if (link.getAttribute("href").startsWith("/api/") || link.target) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
addEventListener("popstate", open);

session = await json("/api/session").catch(error => {
  replace(page, problemPage("The explorer cannot be used", error.message));
  return null;
});
if (session) await open();
