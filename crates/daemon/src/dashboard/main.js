// Asks the daemon for its figures, again and again, and shows them.
import { showCluster, showLoans } from "./cluster.js";
import { curveOf, disksWithCurves, showDisks } from "./disks.js";
import { showMoves } from "./moves.js";
import { showDay, showPools } from "./pools.js";
import { duration, element } from "./text.js";

const EVERY_MS = 5000, OFTEN_MS = 10000, SELDOM_MS = 30000, EVENTS = 50;
const place = (id) => document.getElementById(id);
const state = { overview: null, loads: new Map(), events: [], after: 0, plan: null, tenants: null };

async function ask(path) {
  // `location.origin` leaves out credentials that the page's own address may contain.
  const answer = await fetch(new URL(path, location.origin));
  if (answer.ok) return answer.json();
  const { error } = await answer.json().catch(() => ({}));
  throw new Error(`${path}: ${answer.status} ${error ?? ""}`);
}

/** What each disk has done between two overviews. A disk that was attached again is left out. */
function loadsBetween(before, after) {
  const earlier = new Map(before.disks.map((disk) => [disk.name, disk]));
  const seconds = Math.max((after.asked - before.asked) / 1000, 0.001);
  const loads = new Map();
  for (const disk of after.disks) {
    const old = earlier.get(disk.name);
    if (!old || old.requests > disk.requests || old.read_hits > disk.read_hits) continue;
    loads.set(disk.name, {
      pool: disk.pool, seconds, hits: disk.read_hits - old.read_hits, misses: disk.read_misses - old.read_misses,
      requests: disk.requests - old.requests, latency: disk.latency_us - old.latency_us,
    });
  }
  return loads;
}

function draw() {
  const { overview, loads } = state;
  document.title = `Haversack ${overview.host}`;
  place("host").textContent = overview.host;
  const attached = overview.disks.filter((disk) => disk.state === "attached").length;
  const away = overview.disks.filter((disk) => disk.state === "attached" && !disk.origin_up).length;
  place("summary").textContent = `Version ${overview.version}, up ${duration(overview.uptime_s)}. ` +
    `${attached} of ${overview.disks.length} disks attached. Policy: ${overview.policy ?? "none, the disks share their pool"}.`;
  place("trouble").hidden = away === 0;
  place("trouble").textContent = `${away} ${away === 1 ? "origin is" : "origins are"} away.`;
  showPools(place("pools"), overview, loads);
  showDisks(overview, loads, () => refreshCurves().catch(fail));
}

async function refresh() {
  const overview = await ask("/v1/overview");
  overview.asked = performance.now();
  if (state.overview) state.loads = loadsBetween(state.overview, overview);
  state.overview = overview;
  draw();
}

async function refreshDay() {
  showDay(place("day"), state.overview, await ask("/v1/history"));
}

async function refreshCurves() {
  const disks = disksWithCurves(state.overview);
  place("curves-note").textContent = disks.length ? "The disk selected in the table, and the disks with the most cached data. The dot marks the current share."
    : "No disk is attached.";
  const curves = await Promise.all(disks.map((disk) => ask(`/v1/disks/${encodeURIComponent(disk.name)}/curve`).catch(() => null)));
  place("curves").replaceChildren(...disks.map((disk, at) => curveOf(disk, curves[at])));
}

async function refreshMoves() {
  // A daemon without other hosts would refuse. After a restart it may have some.
  showMoves(place("moves"), state.overview.can_migrate ? await ask("/v1/migrations") : null);
}

/** A daemon without a cluster would refuse: nothing of one is shown. */
async function refreshCluster() {
  place("cluster-section").hidden = !state.overview.is_in_cluster;
  if (!state.overview.is_in_cluster) return;
  const { plan, tenants } = state;
  showCluster(place("cluster"), { status: await ask("/v1/cluster"), plan, tenants });
}

/** Refreshes what takes time to compute in a large cluster. */
async function refreshPlan() {
  if (!state.overview.is_in_cluster) return;
  [state.plan, state.tenants] = await Promise.all([ask("/v1/cluster/plan").catch(() => null), ask("/v1/cluster/tenants")]);
  await refreshCluster();
}

async function refreshLoans() {
  place("loans-section").hidden = !state.overview.shares_flash;
  if (state.overview.shares_flash) showLoans(place("loans"), await ask("/v1/loans"));
}

async function refreshEvents() {
  const { events, next } = await ask(`/v1/events?after=${state.after}`);
  state.after = next;
  state.events = [...events.reverse(), ...state.events].slice(0, EVENTS);
  const rows = state.events.map((event) => element("tr", "",
    element("td", "words", new Date(event.time_ms).toLocaleString("en-GB")), element("td", "words", event.kind),
    element("td", "words", event.subject), element("td", "words message", event.message)));
  place("events").tBodies[0].replaceChildren(...(rows.length ? rows : [element("tr", "", element("td", "words", "None."))]));
}

function fail(error) {
  place("trouble").hidden = false;
  place("trouble").textContent = `The daemon does not answer, the figures are old: ${error.message}`;
}

/** Does some work now, and again `ms` after each time that it has finished. */
async function forever(work, ms) {
  await work().catch(fail);
  setTimeout(() => forever(work, ms), ms);
}

place("filter").addEventListener("input", () => state.overview && draw());
await forever(refresh, EVERY_MS);
if (state.overview) {
  await Promise.all([forever(refreshEvents, EVERY_MS), forever(refreshMoves, EVERY_MS), forever(refreshDay, SELDOM_MS),
    forever(refreshCurves, SELDOM_MS), forever(refreshCluster, OFTEN_MS), forever(refreshLoans, OFTEN_MS),
    forever(refreshPlan, SELDOM_MS)]);
}
