// Line and area charts in SVG.
import { element } from "./text.js";

const WIDTH = 480, HEIGHT = 200, LEFT = 64, RIGHT = 12, TOP = 8, BOTTOM = 24;

function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Round values from 0 to about the most, for an axis. */
function ticks(most) {
  const step = 10 ** Math.floor(Math.log10(most / 4));
  const width = [1, 2, 5, 10].map((times) => times * step).find((width) => most / width <= 5);
  return Array.from({ length: Math.floor(most / width + 1e-9) + 1 }, (_, at) => at * width);
}

/** Powers of two for bytes, so that ticks are round. */
function binaryTicks(most) {
  const width = 2 ** Math.ceil(Math.log2(most / 4));
  return Array.from({ length: Math.floor(most / width + 1e-9) + 1 }, (_, at) => at * width);
}

/**
 * A figure with a chart, or with a sentence why there is none.
 * `series`: [{name, points: [[x, y], ...]}]; `stacked` draws layers whose points have the same x.
 * `mark`: {x, y, text}, a place to point at. `most`: the upper end of y, if it is known.
 */
export function chart({ title, series, x, y, stacked, mark, most, empty, binary, binaryX }) {
  const figure = element("figure", "", element("figcaption", "", title));
  const drawn = series.filter(({ points }) => points.length > 1);
  if (!drawn.length) {
    figure.append(element("p", "", empty));
    return figure;
  }
  const layers = stacked ? layered(drawn) : drawn.map(({ name, points }) => ({ name, points }));
  const all = layers.flatMap(({ points }) => points);
  const from = Math.min(...all.map((point) => point[0])), to = Math.max(...all.map((point) => point[0]), mark?.x ?? -Infinity);
  const top = most ?? (Math.max(...all.map((point) => point[1])) * 1.05 || 1);
  const left = (value) => LEFT + (value - from) / (to - from || 1) * (WIDTH - LEFT - RIGHT);
  const above = (value) => HEIGHT - BOTTOM - Math.min(value / top, 1) * (HEIGHT - TOP - BOTTOM);
  const svg = shape("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  for (const tick of (binary ? binaryTicks : ticks)(top)) {
    svg.append(shape("path", { class: "grid", d: `M${LEFT} ${above(tick)}H${WIDTH - RIGHT}` }));
    svg.append(shape("text", { x: LEFT - 6, y: above(tick) + 4, "text-anchor": "end" }, y(tick)));
  }
  const across = binaryX ? binaryTicks(to) : [0, 0.25, 0.5, 0.75, 1].map((part) => from + part * (to - from));
  for (const tick of across) {
    const anchor = tick === from ? "start" : left(tick) > WIDTH - 40 ? "end" : "middle";
    svg.append(shape("text", { x: left(tick), y: HEIGHT - 6, "text-anchor": anchor }, x(tick)));
  }
  layers.forEach(({ points, floor }, at) => {
    const line = (points) => points.map(([x, y]) => `${left(x).toFixed(1)} ${above(y).toFixed(1)}`);
    const path = "M" + line(points).join("L");
    svg.append(floor ? shape("path", { class: `fill c${at % 9}`, d: `${path}L${line(floor).reverse().join("L")}Z` })
      : shape("path", { class: `line c${at % 9}`, d: path }));
  });
  svg.append(shape("path", { class: "axis", d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}` }));
  if (mark) {
    const side = left(mark.x) > WIDTH * 0.6 ? "end" : "start", aside = side === "end" ? -6 : 6;
    svg.append(shape("path", { class: "mark", d: `M${left(mark.x)} ${TOP}V${HEIGHT - BOTTOM}` }));
    if (mark.y !== undefined) svg.append(shape("circle", { class: "dot", cx: left(mark.x), cy: above(mark.y), r: 4 }));
    svg.append(shape("text", { class: "marked", x: left(mark.x) + aside, y: TOP + 12, "text-anchor": side }, mark.text));
  }
  figure.append(svg);
  if (layers.length > 1) {
    figure.append(element("div", "legend", ...layers.map(({ name }, at) =>
      element("span", `c${at % 9}`, element("i", ""), name))));
  }
  return figure;
}

/** Layers upon each other: each with the upper end of what is below it. */
function layered(series) {
  let floor = series[0].points.map(([x]) => [x, 0]);
  return series.map(({ name, points }) => {
    const upper = points.map(([x, y], at) => [x, y + floor[at][1]]);
    const layer = { name, points: upper, floor };
    floor = upper;
    return layer;
  });
}
