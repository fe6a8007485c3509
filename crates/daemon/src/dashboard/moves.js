// Disks that move between this host and others.
import { bytes, duration, element, percent } from "./text.js";

/** States in which a disk comes here, or is expected; in the others it goes. */
const COMES = ["arriving", "waiting"];
/** States in which blocks are on their way. */
const MOVING = ["sending", "arriving", "leaving"];
const HERE = "this host";

/** What is still to be sent, fetched, or written to the origin before the disk may leave. */
const left = (move) => move.left_bytes + move.needed_bytes + move.following_bytes + move.dirty_bytes;

/** The part that has moved, and the time for the rest. */
function progress(move) {
  if (!MOVING.includes(move.state)) return "–";
  const part = percent(move.sent_bytes / (move.sent_bytes + left(move)));
  return move.eta_s === undefined ? part : `${part}, ${duration(move.eta_s)} left`;
}

/** Columns: heading, class, what to show. */
const COLUMNS = [
  ["disk", "words", (m) => m.disk],
  ["state", "words", (m) => element("span", `state ${m.state}`, m.state)],
  ["from", "words", (m) => COMES.includes(m.state) ? m.host ?? "–" : HERE],
  ["to", "words", (m) => COMES.includes(m.state) ? HERE : m.host ?? "–"],
  ["method", "words", (m) => m.method],
  ["progress", "words", progress],
  ["sent", "minor", (m) => bytes(m.sent_bytes)],
  ["left", "", (m) => bytes(left(m))],
  ["dirty left", "", (m) => bytes(Math.max(m.dirty_left_bytes, m.dirty_bytes))],
];

function table(moves) {
  const head = element("thead", "", element("tr", "", ...COLUMNS.map(([name, className]) => element("th", className, name))));
  const rows = moves.map((move) =>
    element("tr", "", ...COLUMNS.map(([, className, show]) => element("td", className, show(move)))));
  return element("div", "table", element("table", "", head, element("tbody", "", ...rows)));
}

/** Shows the disks that are not just here, or a sentence why there are none. `moves` is null without other hosts. */
export function showMoves(place, moves) {
  const shown = moves?.filter((move) => move.state !== "here") ?? [];
  const none = !moves ? "No disks move between hosts: the configuration has no [migration]."
    : `No disk is on its way. Disks that are here and may move: ${moves.length}.`;
  const troubles = (moves ?? []).filter((move) => move.error);
  place.replaceChildren(shown.length ? table(shown) : element("p", "", none),
    ...troubles.map((move) => element("p", "bad", `${move.disk}: ${move.error}`)));
}
