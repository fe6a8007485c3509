// Shows the values of all series nearest to the pointer.
for (const figure of document.querySelectorAll("figure")) {
  const svg = figure.querySelector("svg"), holder = figure.querySelector("script");
  if (!svg || !holder) continue;
  const data = JSON.parse(holder.textContent);
  const line = document.createElementNS(svg.namespaceURI, "path"), box = document.createElement("div");
  line.setAttribute("class", "pointer");
  box.className = "values";
  const hide = () => { line.remove(); box.remove(); };
  const nearest = (points, x) => points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect(), scale = frame.width / svg.viewBox.baseVal.width;
    const x = (event.clientX - frame.left) / scale, shown = data.series.filter((s) => s.points.length);
    if (!shown.length) return hide();
    const places = shown.map((s) => nearest(s.points, x));
    const at = nearest(places, x);
    line.setAttribute("d", `M${at[0]} ${data.top}V${data.bottom}`);
    box.replaceChildren(at[2]);
    shown.forEach((s, n) => {
      const row = document.createElement("div"), key = document.createElement("i");
      key.className = "c" + s.colour;
      const other = places[n][2] === at[2] ? "" : ` (at ${places[n][2]})`;
      row.append(key, `${s.name}: ${places[n][3]}${other}`);
      box.append(row);
    });
    svg.append(line);
    figure.append(box);
    const left = svg.offsetLeft ?? 0, px = at[0] * scale;
    const room = frame.width - px - 14 > box.offsetWidth;
    box.style.left = `${left + (room ? px + 12 : Math.max(0, px - box.offsetWidth - 12))}px`;
    box.style.top = `${frame.top - figure.getBoundingClientRect().top + data.top * scale}px`;
  });
}
