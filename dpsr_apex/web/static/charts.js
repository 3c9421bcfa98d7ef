// Curves, drawn with plotly.js, which is loaded on first use.

import { css, h } from "./dom.js";

let loading = null;

function loaded() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/static/plotly.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      loading = null;
      reject(new Error("The plots cannot be loaded: is the package plotly installed?"));
    };
    document.head.append(script);
  });
  return loading;
}

const FEW = 13; // points
const FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif";

function layoutOf({ title, unit, log, height }, traces) {
  const ink = css("--muted"),
    line = css("--line");
  const axis = {
    gridcolor: line,
    linecolor: line,
    zeroline: false,
    tickfont: { size: 11, color: ink },
    automargin: true,
  };
  return {
    height: height ?? 220,
    margin: { l: 44, r: 10, t: 8, b: 38 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: FONT, size: 12, color: ink },
    showlegend: false,
    hovermode: "x unified",
    dragmode: "zoom",
    uirevision: title,
    hoverlabel: { bgcolor: css("--panel"), bordercolor: line, font: { color: css("--ink"), size: 12 } },
    xaxis: { ...axis, tickformat: "~s", nticks: 6, title: { text: "transitions", font: { size: 11 }, standoff: 6 } },
    yaxis: {
      ...axis,
      type: log ? "log" : "linear",
      dtick: log ? decadesOf(traces) : undefined,
      exponentformat: "power",
      nticks: log ? undefined : 6,
      title: unit ? { text: unit, font: { size: 11 } } : undefined,
    },
  };
}

/** The distance between ticks on a logarithmic axis: whole decades, or 1, 2 and 5 if there are few. */
function decadesOf(traces) {
  const known = traces.flatMap(trace => trace.y).filter(value => value > 0),
    decades = Math.log10(Math.max(...known) / Math.min(...known));
  return decades > 1.5 ? Math.max(Math.ceil(decades / 5), 1) : "D2";
}

/** The names of the lines of a chart, with their colours. */
export function legendOf(traces) {
  const named = traces.filter(trace => trace.name && trace.showlegend !== false);
  return named.map(trace =>
    h(
      "span.line-name",
      { style: { "--line-colour": trace.line.color } },
      h(`i${trace.line.dash ? ".dashed" : ""}`, {}),
      trace.name,
    ),
  );
}

/** Draw or redraw a chart in an element. */
export async function chart(element, traces, options = {}) {
  const Plotly = await loaded();
  if (!element.isConnected) return;
  await Plotly.react(
    element,
    traces,
    { ...layoutOf(options, traces), ...(options.layout ?? {}) },
    { displayModeBar: false, responsive: true, scrollZoom: false },
  );
}

export async function forget(element) {
  if (loading) (await loaded()).purge(element);
}

/** A line; the points are marked if there are few. */
export const lineOf = (name, x, y, colour, { line = {}, ...more } = {}) => ({
  type: "scatter",
  mode: x.length < FEW ? "lines+markers" : "lines",
  marker: { size: 5 },
  name,
  x,
  y,
  hovertemplate: "%{y:.4~g}",
  connectgaps: true,
  ...more,
  line: { color: colour, width: 1.8, ...line },
});

/** The area between two lines. */
export const bandOf = (x, low, high, colour, opacity = 0.15) => [
  { type: "scatter", mode: "lines", x, y: low, line: { width: 0 }, hoverinfo: "skip", showlegend: false },
  {
    type: "scatter",
    mode: "lines",
    x,
    y: high,
    line: { width: 0 },
    fill: "tonexty",
    fillcolor: faded(colour, opacity),
    hoverinfo: "skip",
    showlegend: false,
  },
];

function faded(colour, opacity) {
  const found = colour.match(/^#(..)(..)(..)$/);
  return found
    ? `rgba(${found
        .slice(1)
        .map(part => parseInt(part, 16))
        .join(",")},${opacity})`
    : colour;
}

/** Means over a centred window of a twentieth of all values. */
export function smoothed(values) {
  const reach = Math.floor(values.length / 40);
  return values.map((_, place) => {
    const part = values.slice(Math.max(place - reach, 0), place + reach + 1);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}
