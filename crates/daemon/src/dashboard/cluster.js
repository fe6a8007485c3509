// The cluster: hosts, disks, moves, tenants; and flash that hosts lend each other.
import { bytes, duration, element, latency, percent, rate } from "./text.js";

/** The most disks that are shown. */
const MOST_DISKS = 100;

/** A table with columns [heading, class, what to show of a row], or nothing without rows. */
function table(title, columns, rows) {
  if (!rows.length) return null;
  const head = element("thead", "", element("tr", "", ...columns.map(([name, className]) => element("th", className, name))));
  const body = rows.map((row) => element("tr", "", ...columns.map(([, className, show]) => element("td", className, show(row)))));
  return element("div", "", element("h3", "", title),
    element("div", "table", element("table", "", head, element("tbody", "", ...body))));
}

const state = (text) => element("span", `state ${text}`, text);
const age = (s) => s === undefined ? "–" : duration(s);
const part = (of, whole) => whole ? percent(of / whole) : "–";

/** Columns of pools, each with its host. */
const POOLS = [
  ["host", "words", ([host]) => host.name],
  ["state", "words", ([host]) => state(host.state)],
  ["heard", "minor", ([host]) => age(host.age_s)],
  ["disks", "minor", ([host]) => String(host.disks)],
  ["pool", "words minor", ([, pool]) => pool?.name ?? "–"],
  ["capacity", "", ([, pool]) => pool ? bytes(pool.capacity_bytes) : "–"],
  ["demand", "", ([, pool]) => pool ? part(pool.demand_bytes, pool.capacity_bytes) : "–"],
  ["used", "minor", ([, pool]) => pool ? part(pool.usage_bytes, pool.capacity_bytes) : "–"],
  ["dirty", "minor", ([, pool]) => pool ? bytes(pool.dirty_bytes) : "–"],
  ["requests/s", "", ([, pool]) => rate(pool?.requests_per_s)],
  ["latency", "minor", ([, pool]) => latency(pool?.latency_us || NaN)],
];

const DISKS = [
  ["disk", "words", (d) => d.name],
  ["owner", "words", (d) => d.is_host_alive ? d.host : `${d.host} (away)`],
  ["to", "words minor", (d) => d.moving_to ?? "–"],
  ["state", "words minor", (d) => d.state],
  ["tenant", "words minor", (d) => d.tenant ?? "–"],
  ["demand", "", (d) => bytes(d.demand_bytes)],
  ["used", "", (d) => bytes(d.usage_bytes)],
  ["dirty", "minor", (d) => bytes(d.dirty_bytes)],
];

const MOVES = [
  ["disk or VM", "words", (m) => m.name],
  ["from", "words", (m) => m.from],
  ["to", "words", (m) => m.to],
  ["state", "words", (m) => state(m.state)],
  ["age", "minor", (m) => age(m.age_s)],
  ["reason", "words message", (m) => m.reason],
];

const TENANTS = [
  ["tenant", "words", (t) => t.name || "(none)"],
  ["weight", "minor", (t) => t.settings ? String(t.settings.weight) : "–"],
  ["limit", "minor", (t) => t.settings?.limit === undefined ? "–" : bytes(t.settings.limit)],
  ["demand", "", (t) => bytes(t.demand_bytes)],
  ["used", "", (t) => bytes(t.usage_bytes)],
  ["share", "", (t) => t.share_bytes === undefined ? "–" : bytes(t.share_bytes)],
  ["missing", "", (t) => t.missing_bytes ? element("span", "bad", bytes(t.missing_bytes)) : "–"],
];

const PLANNED_LOANS = [
  ["borrower", "words", (l) => l.borrower],
  ["lender", "words", (l) => l.lender],
  ["state", "words", (l) => state(l.is_begun ? "borrows" : "proposed")],
  ["size", "", (l) => bytes(l.size_bytes)],
];

const LENT = [
  ["lent to", "words", (l) => l.host],
  ["disk", "words", (l) => l.disk],
  ["loans", "minor", (l) => String(l.loans)],
  ["capacity", "", (l) => bytes(l.capacity_bytes)],
  ["used", "", (l) => bytes(l.used_bytes)],
  ["age", "minor", (l) => age(l.age_s)],
  ["hits", "", (l) => part(l.hit_blocks, l.asked_blocks)],
];

const BORROWED = [
  ["disk", "words", (l) => l.disk],
  ["borrows from", "words", (l) => l.host],
  ["state", "words", (l) => state(l.state)],
  ["loans", "minor", (l) => String(l.loans)],
  ["capacity", "minor", (l) => bytes(l.capacity_bytes)],
  ["used", "", (l) => bytes(l.used_bytes)],
  ["age", "minor", (l) => l.loans ? age(l.age_s) : "–"],
  ["hits", "", (l) => part(l.hit_blocks, l.asked_blocks)],
  ["latency", "minor", (l) => latency(l.latency_us || NaN)],
];

/** Returns the state of the directory, and the age of the data that is shown below it. */
function directory(status) {
  const { endpoint, name, since_s, age_s, problems } = status.directory;
  const balances = status.leader ? `Host ${status.leader} balances.` : "No host carries out moves.";
  const text = endpoint ? `This host is ${name}. ${balances}`
    : age_s === undefined ? `The directory has not been reached for ${duration(since_s)} so far.`
    : `The directory has been away for ${duration(since_s)}; the data below is ${duration(age_s)} old. Nothing is balanced.`;
  return [element("p", endpoint ? "" : "bad", text), ...(problems ?? []).map((problem) => element("p", "bad", problem))];
}

/** Shows the cluster from the answers of /v1/cluster and, once available, /v1/cluster/plan and /v1/cluster/tenants. */
export function showCluster(place, { status, plan, tenants }) {
  const pools = status.hosts.flatMap((host) => host.pools.length ? host.pools.map((pool) => [host, pool]) : [[host, null]]);
  const running = status.moves.map((move) => ({ ...move, name: move.disk }));
  const under_way = new Set(status.moves.map((move) => move.disk));
  const proposed = (plan?.moves ?? []).filter((move) => !move.disks.some((disk) => under_way.has(disk)))
    .map((move) => ({ ...move, name: move.vm, state: "proposed" }));
  const moves = [...running, ...proposed];
  const disks = [...status.disks].sort((a, b) => b.demand_bytes - a.demand_bytes);
  const most = disks.length > MOST_DISKS ? `, the ${MOST_DISKS} with the highest demand` : "";
  place.replaceChildren(...[
    ...directory(status),
    table("Hosts", POOLS, pools),
    table("Moves", MOVES, moves),
    moves.length || !plan ? null : element("p", "", "No move is proposed or under way."),
    ...(plan?.held ?? []).map((text) => element("p", "", text)),
    table("Loans in the cluster", PLANNED_LOANS, plan?.loans ?? []),
    table("Tenants", TENANTS, tenants ?? []),
    table(`Disks of the cluster: ${disks.length}${most}`, DISKS, disks.slice(0, MOST_DISKS)),
  ].filter(Boolean));
}

/** Shows what this host lends and borrows. */
export function showLoans(place, loans) {
  const lends = loans.lends.map((pool) => element("p", "",
    `Pool ${pool.pool} lends ${bytes(pool.promised_bytes)} of ${bytes(pool.capacity_bytes)} at most; ` +
    `${bytes(pool.spare_bytes)} more could be lent now; loans taken back: ${pool.taken_back}.`));
  place.replaceChildren(...[...lends, table("Lent", LENT, loans.lent), table("Borrowed", BORROWED, loans.borrowed)].filter(Boolean));
}
