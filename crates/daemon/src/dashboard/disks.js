// The table of disks, and the curves of those that matter.
import { chart } from "./charts.js";
import { bytes, element, latency, percent, rate } from "./text.js";

/** The most rows that are shown at first, and curves. */
const ROWS = 100, CURVES = 4;

const view = { sort: "usage", down: true, all: false, chosen: null };

const hits = (disk, load) => load?.hits + load?.misses ? load.hits / (load.hits + load.misses) : disk.read_hits / (disk.read_hits + disk.read_misses);

/** Columns: heading, class, what to sort by, what to show. */
const COLUMNS = {
  name: ["disk", "words", (d) => d.name, (d) => d.name],
  state: ["state", "words", (d) => d.state, (d) => element("span", `state ${d.state}`, d.state)],
  pool: ["pool", "words minor", (d) => d.pool, (d) => d.pool],
  mode: ["mode", "words minor", (d) => d.mode ?? "", (d) => d.mode ?? "–"],
  size: ["size", "minor", (d) => d.size_bytes, (d) => bytes(d.size_bytes)],
  usage: ["cached", "", (d) => d.usage_bytes, (d) => bytes(d.usage_bytes)],
  dirty: ["dirty", "minor", (d) => d.dirty_bytes, (d) => bytes(d.dirty_bytes)],
  hits: ["hits", "", (d, l) => hits(d, l) || 0, (d, l) => percent(hits(d, l))],
  requests: ["requests/s", "", (d, l) => l?.requests / l?.seconds || 0, (d, l) => rate(l?.requests / l?.seconds)],
  latency: ["latency", "minor", (d, l) => l?.latency / l?.requests || 0, (d, l) => latency(l?.latency / l?.requests)],
  flash: ["flash writes", "minor", (d) => d.flash_bytes, (d) => bytes(d.flash_bytes)],
  errors: ["errors", "", (d) => d.errors, (d) => d.errors ? element("span", "bad", String(d.errors)) : "0"],
};

function heading(redraw) {
  return element("tr", "", ...Object.entries(COLUMNS).map(([key, [name, className]]) => {
    const button = element("button", "", name + (view.sort === key ? view.down ? " ↓" : " ↑" : ""));
    button.addEventListener("click", () => {
      view.down = view.sort === key ? !view.down : !className.includes("words");
      view.sort = key;
      redraw();
    });
    return element("th", className, button);
  }));
}

function row(disk, load, choose) {
  const made = element("tr", disk.name === view.chosen ? "chosen" : "",
    ...Object.values(COLUMNS).map(([, className, , show]) => element("td", className, show(disk, load))));
  made.addEventListener("click", () => choose(disk.name));
  return made;
}

/** Shows the disks that match the filter, in the chosen order. `choose` is called with a disk's name. */
export function showDisks(overview, loads, choose) {
  const redraw = () => showDisks(overview, loads, choose);
  const wanted = document.getElementById("filter").value.toLowerCase();
  const key = COLUMNS[view.sort][2];
  const keyed = overview.disks
    .filter((disk) => [disk.name, disk.pool, disk.state].some((text) => text.toLowerCase().includes(wanted)))
    .map((disk) => [key(disk, loads.get(disk.name)), disk]);
  keyed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (view.down ? -1 : 1));
  const shown = view.all ? keyed : keyed.slice(0, ROWS);
  const table = document.getElementById("disks");
  table.tHead.replaceChildren(heading(redraw));
  table.tBodies[0].id = "rows";
  table.tBodies[0].replaceChildren(...shown.map(([, disk]) =>
    row(disk, loads.get(disk.name), (name) => { view.chosen = name; redraw(); choose(name); })));
  const more = document.getElementById("more");
  more.hidden = shown.length === keyed.length;
  more.textContent = `Show all ${keyed.length} disks`;
  more.onclick = () => { view.all = true; redraw(); };
}

/** The disks whose curves are shown: the chosen one, then those with the most in the cache. */
export function disksWithCurves(overview) {
  const attached = overview.disks.filter((disk) => disk.state === "attached");
  attached.sort((a, b) => (b.name === view.chosen) - (a.name === view.chosen) || b.usage_bytes - a.usage_bytes);
  return attached.slice(0, CURVES);
}

/** The miss ratio of a curve at a cache size. */
function at(points, size) {
  const after = points.findIndex((point) => point.bytes >= size);
  if (after < 0) return points.at(-1).miss_ratio;
  if (after === 0) return points[0].miss_ratio;
  const [a, b] = [points[after - 1], points[after]];
  return a.miss_ratio + (b.miss_ratio - a.miss_ratio) * (size - a.bytes) / (b.bytes - a.bytes);
}

/** A disk's curve with its present share, or a sentence why there is none. */
export function curveOf(disk, curve) {
  const points = curve?.all ?? [];
  const figure = chart({
    title: disk.name, most: 1, x: bytes, y: percent, binaryX: true,
    series: [{ name: "miss ratio", points: points.map((point) => [point.bytes, point.miss_ratio]) }],
    mark: points.length > 1 ? { x: disk.usage_bytes, y: at(points, disk.usage_bytes), text: `now ${bytes(disk.usage_bytes)}` } : undefined,
    empty: `No curve: nothing measures this disk, or it was idle. Set a policy, or run: haversack disk curve ${disk.name} --for 30s`,
  });
  if (disk.reason) figure.append(element("p", "", `Policy: ${disk.reason}`));
  return figure;
}
