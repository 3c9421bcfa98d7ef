// Elements, formats and requests that all pages share. Text from a run is only inserted as text, never as HTML.

/** Create an element: h("p.note", {title: "…", onclick: f}, "text", child, …). */
export function h(what, attributes, ...children) {
  const [name, ...classes] = what.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, one] of Object.entries(value)) element.style.setProperty(name, one);
    else if (key in element && typeof value !== "string" && key !== "list") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

export const replace = (element, ...children) => element.replaceChildren(...children.flat().filter(Boolean));

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  play: "M7 5v14l12-7z",
  pause: "M7 5h4v14H7zM14 5h4v14h-4z",
  step: "M6 5v14l9-7zM16 5h3v14h-3z",
  star: "M12 3.6l2.6 5.3 5.8.8-4.2 4.1 1 5.8L12 16.9l-5.2 2.7 1-5.8L3.6 9.7l5.8-.8z",
  branch: "M7 4v16M7 14c7 0 10-2 10-7M14 9l3-3 3 3",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2",
  moon: "M19 14.5A8 8 0 0 1 9.5 5 8 8 0 1 0 19 14.5z",
  save: "M12 4v11M7 11l5 5 5-5M5 20h14",
  lasso:
    "M12 5c5 0 8 2 8 4.6S17 14 12 14s-8-1.8-8-4.4S7 5 12 5zM7.5 13.4c-1.6 2 .4 3.6 2 3s1.4-2.5-.4-2.5M9.5 17c0 2 1 3 3 3",
  reset: "M5 12a7 7 0 1 0 2.4-5.3M4 4l3.6 2.4-2.6 3.3",
  hand: "M5 9h14v9H5zM8 12h.1M12 12h.1M16 12h.1M8.5 15h7",
  eye: "M3 12s3.5-6 9-6 9 6 9 6-3.5 6-9 6-9-6-9-6zM12 9.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5z",
  grid: "M5 5h5v5H5zM14 5h5v5h-5zM5 14h5v5H5zM14 14h5v5h-5z",
  close: "M6 6l12 12M18 6L6 18",
};
const FILLED = new Set(["play", "pause", "step"]);

/** An icon, beside or instead of a word. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg"),
    path = document.createElementNS(SVG, "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", `icon${FILLED.has(name) ? " filled" : ""}`);
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

export function svg(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Numbers.

export const DASH = "–";
const MINUS = "−";

/** Four significant digits, or an integer with separators from 1,000 on. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  const size = Math.abs(value);
  let text;
  if (size >= 1000) text = Math.round(value).toLocaleString("en");
  else if (size > 0 && size < 1e-4) text = value.toExponential(2).replace("e-", "e−");
  else text = String(Number(value.toPrecision(digits)));
  return text.replace(/^-/, MINUS);
}

export const signed = (value, digits = 4) =>
  value === null || value === undefined || !Number.isFinite(value)
    ? DASH
    : (value >= 0 ? "+" : "") + number(value, digits);
export const whole = value => (value === null || value === undefined ? DASH : Math.round(value).toLocaleString("en"));
export const percent = (share, digits = 0) =>
  share === null || share === undefined ? DASH : `${(100 * share).toFixed(digits)} %`;

/** Three significant digits, and k or M. */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  const size = Math.abs(value);
  if (size >= 999500) return `${Number((value / 1e6).toPrecision(3))}M`.replace(/^-/, MINUS);
  if (size >= 999.5) return `${Number((value / 1e3).toPrecision(3))}k`.replace(/^-/, MINUS);
  return number(value, 3);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  const minutes = Math.floor(seconds / 60),
    hours = Math.floor(minutes / 60);
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  return `${hours}:${String(minutes % 60).padStart(2, "0")}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}

/** A count with its noun. */
export const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

/** How long ago a time (seconds since the epoch) was. */
export function ago(time) {
  const seconds = Math.max(Date.now() / 1000 - time, 0);
  for (const [name, size] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
  ]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${name} ago`;
  }
  return "now";
}

// Requests.

export const runUrl = (run, ...rest) => `/api/run/${encoded(run)}${rest.length ? `/${rest.join("/")}` : ""}`;
export const encoded = run => run.split("/").map(encodeURIComponent).join("/");
export const pageOf = (run, ...rest) => `/run/${encoded(run)}${rest.length ? `/${rest.join("/")}` : ""}`;

/** The reason why a request failed, as the server has given it. */
class Problem extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export async function fetched(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The explorer does not respond. Is it still running?");
  }
  if (!response.ok) throw new Problem(response.status, (await response.text()) || response.statusText);
  return response;
}

export const json = async (url, options) => (await fetched(url, options)).json();
export const change = (url, method, content) =>
  json(url, { method, body: content === undefined ? undefined : JSON.stringify(content) });

/** Listen to a stream of events until the returned function is called; it reconnects by itself. */
export function listen(url, onEvent, onProblem) {
  let source = null,
    timer = null,
    ended = false;
  const open = () => {
    source = new EventSource(url);
    source.onmessage = message => {
      onProblem?.(null);
      onEvent(JSON.parse(message.data));
    };
    source.onerror = async () => {
      source.close();
      if (ended) return;
      onProblem?.("The explorer does not respond. Retrying…");
      timer = setTimeout(open, 2000);
    };
  };
  open();
  return () => {
    ended = true;
    clearTimeout(timer);
    source.close();
  };
}

/** Wait until the browser has nothing else to do. */
export const idle = () =>
  new Promise(resolve =>
    window.requestIdleCallback ? requestIdleCallback(resolve, { timeout: 1000 }) : setTimeout(resolve, 30),
  );

// Messages.

export function notice(text, kind = "") {
  const all = document.getElementById("notices");
  for (const shown of all.children) if (shown.textContent === text) shown.remove();
  const element = h(`div.notice${kind ? `.${kind}` : ""}`, {}, text);
  all.append(element);
  setTimeout(() => element.classList.add("leaving"), 5000);
  setTimeout(() => element.remove(), 5400);
}

/** Show why something did not work, instead of failing silently. */
export async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    if (error.name !== "AbortError") notice(error.message, "bad");
    return undefined;
  }
}

export const problemPage = (title, reason, run = null) =>
  h(
    "section.empty",
    {},
    h("h1", {}, title),
    h("p", {}, reason),
    h(
      "p",
      {},
      run ? [h("a.button", { href: pageOf(run, "map") }, "Replay map"), " "] : null,
      h("a.button", { href: "/" }, "All runs"),
    ),
  );

export function download(url, name) {
  const link = h("a", { href: url, download: name ?? "" });
  document.body.append(link);
  link.click();
  link.remove();
}

// Colours.

export const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The parts of a colour like #3b5bdb, from 0 to 1. */
export const rgb = colour => [1, 3, 5].map(place => parseInt(colour.slice(place, place + 2), 16) / 255);
