// Added to the page by its test: tells the test when it was painted, in the browser's own time, and how wide it is.
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));

const painted = new Promise((resolve) => {
  new PerformanceObserver((list) => {
    const first = list.getEntries().find((entry) => entry.name === "first-contentful-paint");
    if (first) resolve(first.startTime);
  }).observe({ type: "paint", buffered: true });
});

/** The time when what matches was painted: in the frame after the one that found it. */
async function seen(selector) {
  while (!document.querySelector(selector)) await frame();
  await frame();
  return performance.now();
}

const [paint, disks] = await Promise.all([painted, seen("#disks tbody tr")]);
for (const selector of ["#curves figure", "#day figure", "#moves *", "#events td"]) await seen(selector);
const { is_in_cluster } = await (await fetch("/v1/overview")).json();
for (const selector of is_in_cluster ? ["#cluster table", "#loans table"] : []) await seen(selector);
await pause(100);
const wide = document.documentElement.scrollWidth;
await fetch(`/test/measured?paint=${paint}&disks=${disks}&wide=${wide}&window=${innerWidth}`);
