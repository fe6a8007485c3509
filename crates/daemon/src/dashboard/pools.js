// Pools: what they are now, and their last day.
import { chart } from "./charts.js";
import { bytes, clock, duration, element, latency, percent, rate } from "./text.js";

function fact(name, value) {
  return element("div", "", element("dt", "", name), element("dd", "", value));
}

function bar(pool) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "bar");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("viewBox", "0 0 100 10");
  const whole = pool.capacity_bytes || 1;
  const parts = [["", 100], ["clean", pool.usage_bytes / whole * 100], ["dirty", pool.dirty_bytes / whole * 100]];
  for (const [kind, width] of parts) {
    const part = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    part.setAttribute("class", kind);
    part.setAttribute("width", Math.min(width, 100));
    part.setAttribute("height", 10);
    svg.append(part);
  }
  return svg;
}

/** What a pool's disks do at the moment, added up. */
function load(pool, loads) {
  const sum = { hits: 0, misses: 0, requests: 0, latency: 0, seconds: 0 };
  for (const [, load] of [...loads].filter(([, load]) => load.pool === pool.name)) {
    for (const key of ["hits", "misses", "requests", "latency"]) sum[key] += load[key];
    sum.seconds = load.seconds;
  }
  return sum;
}

function card(pool, loads) {
  const now = load(pool, loads);
  const written = pool.devices.reduce((sum, device) => sum + device.written_bytes, 0);
  const devices = pool.devices.map((device) => element("p", device.errors ? "bad" : "",
    `${device.path}: ${bytes(device.capacity_bytes)}, read ${bytes(device.read_bytes)}, written ${bytes(device.written_bytes)}` +
    (device.errors ? `, ${device.errors} errors` : "")));
  const troubles = [pool.error, ...(pool.warnings ?? []), ...(pool.missing ?? []).map((path) => `missing: ${path}`)];
  return element("div", "card",
    element("h3", "", `${pool.name} `, element("span", `state ${pool.state}`, pool.state)),
    bar(pool),
    element("p", "", `${bytes(pool.usage_bytes)} of ${bytes(pool.capacity_bytes)} used, ${bytes(pool.dirty_bytes)} dirty`),
    element("dl", "facts",
      fact("read hits", percent(now.hits / (now.hits + now.misses))),
      fact("requests/s", rate(now.requests / now.seconds)),
      fact("mean latency", latency(now.latency / now.requests)),
      fact("written to flash, total", bytes(written))),
    ...troubles.filter(Boolean).map((text) => element("p", "bad", text)),
    ...devices);
}

/** The cards of all pools. */
export function showPools(place, overview, loads) {
  const none = "No pool is configured: create one with haversack pool create, and restart haversackd.";
  place.replaceChildren(...(overview.pools.length ? overview.pools.map((pool) => card(pool, loads)) : [element("p", "", none)]));
}

/** The assumed rating of the devices: one drive write per day for this number of years. */
const RATED_YEARS = 5;

/** How fast a pool's devices wear, from what was written to flash in the time that the history covers. */
function wear(pool, moments) {
  const seconds = moments.reduce((sum, moment) => sum + moment.interval_s, 0);
  const written = moments.reduce((sum, moment) => sum + moment.flash_bytes, 0);
  const capacity = pool.devices.reduce((sum, device) => sum + device.capacity_bytes, 0);
  if (seconds < 600 || !capacity) return "Flash writes: a forecast needs ten minutes of history.";
  const writes = written / seconds * 86400 / capacity, years = RATED_YEARS / writes;
  const age = years < 100 ? `${years.toFixed(1)} years` : "more than 100 years";
  return `Flash writes: ${bytes(written)} in ${duration(seconds)}, which is ${writes.toFixed(2)} drive writes a day. ` +
    `Devices that are rated for one a day over ${RATED_YEARS} years last ${age} at this rate; with twice the rating, twice as long.`;
}

function day(pool, history) {
  const { moments, disks, other_disks } = history;
  const active = moments.filter((moment) => moment.interval_s > 0);
  const curve = (value) => active.map((moment) => [moment.time_s, value(moment)]).filter(([, y]) => Number.isFinite(y));
  const empty = "Nothing yet: the first points come within some minutes of use.";
  const shares = disks.map(({ disk, usage_bytes }) =>
    ({ name: disk, points: moments.map(({ time_s }, at) => [time_s, usage_bytes[at]]) }));
  if (other_disks) {
    const rest = (moment, at) => Math.max(0, moment.usage_bytes - disks.reduce((sum, disk) => sum + disk.usage_bytes[at], 0));
    shares.push({ name: `${other_disks} more`, points: moments.map((moment, at) => [moment.time_s, rest(moment, at)]) });
  }
  return element("div", "", element("h3", "", pool.name), element("p", "", wear(pool, active)), element("div", "charts",
    chart({ title: "Shares of the pool", series: shares, x: clock, y: bytes, stacked: true, binary: true, empty }),
    chart({ title: "Read hits", most: 1, x: clock, y: percent, empty,
      series: [{ name: "hits", points: curve((m) => m.read_hits / (m.read_hits + m.read_misses)) }] }),
    chart({ title: "Mean latency of requests", x: clock, y: latency, empty,
      series: [{ name: "latency", points: curve((m) => m.latency_us / m.requests) }] }),
    chart({ title: "Written to flash, per second", x: clock, y: bytes, binary: true, empty,
      series: [{ name: "written", points: curve((m) => m.flash_bytes / m.interval_s) }] })));
}

/** The last day of all pools. */
export function showDay(place, overview, history) {
  const days = overview.pools.flatMap((pool) => {
    const found = history.pools.find((other) => other.pool === pool.name);
    return found ? [day(pool, found)] : [];
  });
  const none = overview.pools.length ? "No history is kept: history_size is 0, or its file cannot be written." : "No pool is configured.";
  place.replaceChildren(...(days.length ? days : [element("p", "", none)]));
}
