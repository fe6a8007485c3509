// Numbers, times and elements as text.

/** Bytes with a binary unit. */
export function bytes(value) {
  let unit = 0;
  while (value >= 1024 && unit < 5) { value /= 1024; unit += 1; }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

/** A share of one, in percent. */
export const percent = (value) => Number.isFinite(value) ? `${(value * 100).toFixed(value < 0.1 || value > 0.9 ? 1 : 0)} %` : "–";

/** Microseconds, with the unit that fits. */
export function latency(us) {
  if (!Number.isFinite(us)) return "–";
  if (us < 1000) return `${Math.round(us)} µs`;
  return us < 1e6 ? `${(us / 1000).toFixed(us < 1e4 ? 2 : 1)} ms` : `${(us / 1e6).toFixed(1)} s`;
}

/** A rate, without a unit. */
export const rate = (value) => !Number.isFinite(value) ? "–" : value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en");

/** Seconds, in the two largest units. */
export function duration(s) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([length]) => s >= length);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).map(([length, unit], at) =>
    `${Math.floor(at ? s % parts[first][0] / length : s / length)} ${unit}`).join(" ");
}

/** The time of day of seconds since 1970. */
export const clock = (s) => new Date(s * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

/** An element with its class and its children: texts, which are never taken for HTML, or elements. */
export function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
