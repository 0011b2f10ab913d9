"use strict";
// Keeps pages up to date, draws charts and shows local times; without it, pages are what they were
// when they were loaded.
(() => {
  const status = document.getElementById("status");
  const live = document.getElementById("live");
  const log = document.getElementById("log");

  // ------------------------------------------------------------------------------- local times
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const localise = (within) => {
    for (const time of within.querySelectorAll("time[datetime]")) {
      time.title = time.dateTime;
      time.textContent = local.format(new Date(time.dateTime));
    }
  };

  // ------------------------------------------------------------------------------------ charts
  const scaled = (value, unit) => {
    const units = unit === "bytes" ? ["B", "kB", "MB", "GB", "TB"] : ["", "k", "M", "G", "T"];
    let n = 0;
    while (unit !== "seconds" && Math.abs(value) >= 1000 && n < units.length - 1) { value /= 1000; n += 1; }
    return `${+value.toPrecision(3)}${units[n] ? " " + units[n] : ""}${unit === "seconds" ? " s" : ""}`;
  };
  const draw = (within) => {
    if (typeof uPlot === "undefined") return;
    for (const figure of within.querySelectorAll("[data-chart]")) {
      const { title, unit, points } = JSON.parse(figure.dataset.chart);
      const colour = getComputedStyle(document.body);
      const [text, line] = [colour.color, colour.getPropertyValue("--line").trim()];
      const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
      const options = {
        title,
        width: Math.max(figure.clientWidth, 240),
        height: 180,
        cursor: { y: false },
        scales: { y: { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        axes: [axis, { ...axis, size: 70, values: (u, values) => values.map((v) => scaled(v, unit)) }],
        series: [{}, { label: title, stroke: colour.getPropertyValue("--link"), width: 2, points: { show: true, size: 5 }, value: (u, v) => v === null ? "" : scaled(v, unit) }],
      };
      figure.replaceChildren();
      new uPlot(options, [points.map((p) => p[0]), points.map((p) => p[1])], figure);
    }
  };

  const show = (within) => { localise(within); draw(within); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (live) refresh(); });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, select, textarea")) return;
    const find = document.getElementById("find");
    if (find) { event.preventDefault(); find.focus(); }
  });
  const raw = live ? live.innerHTML : ""; // as it was sent
  show(document);
  if (!live && !log) return;

  // ------------------------------------------------------------------------------------- events
  const place = (live || log).dataset.since;
  const source = new EventSource("/stream" + (place ? "?since=" + encodeURIComponent(place) : ""));
  let due = null;

  const LOST = "not connected: what is shown may be old";
  // What has the focus stays focused: the same link or button of the new page, or its n-th twin.
  const FOCUSABLE = "a[href], button, summary, [tabindex]";
  const named = (e) => [e.tagName, e.getAttribute("href"), e.getAttribute("aria-label"), e.querySelector("time") ? "" : e.textContent].join("|");
  const twins = (e) => [...live.querySelectorAll(FOCUSABLE)].filter((other) => named(other) === named(e));
  let shown = raw;

  const replace = (fresh) => {
    if (fresh.innerHTML === shown) return; // so that nothing is read aloud twice
    const draft = document.activeElement;
    if (live.contains(draft) && draft.matches("input, select")) return;
    const focused = live.contains(draft) ? draft : null;
    const n = focused ? twins(focused).indexOf(focused) : -1;
    const open = [...live.querySelectorAll("details")].map((d) => d.open);
    const scrolled = [...live.querySelectorAll(".scroll")].map((e) => e.scrollLeft);
    shown = fresh.innerHTML;
    live.replaceChildren(...fresh.childNodes);
    live.querySelectorAll("details").forEach((d, n) => { d.open = Boolean(open[n]); });
    show(live);
    live.querySelectorAll(".scroll").forEach((e, n) => { e.scrollLeft = scrolled[n] || 0; });
    if (focused) {
      const same = twins(focused);
      (same[n] || same[0] || document.getElementById("main")).focus({ preventScroll: true });
    }
  };
  const refresh = async () => {
    due = null;
    const url = new URL(location.href);
    url.searchParams.delete("made");
    let fresh = null;
    try {
      const answer = await fetch(url, { credentials: "same-origin" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      fresh = answer.ok && !answer.redirected ? page.getElementById("live") : null;
    } catch { /* the service does not answer */ }
    status.textContent = fresh ? "" : LOST;
    if (fresh) replace(fresh);
  };
  const soon = (ms) => { if (live && due === null) due = setTimeout(refresh, ms); };
  if (live && live.dataset.every) setInterval(() => soon(0), 1000 * Number(live.dataset.every));

  const cell = (tag, content) => {
    const made = document.createElement(tag);
    made.append(content);
    if (tag === "th") made.scope = "row";
    return made;
  };
  const linked = (text, path) => {
    const made = document.createElement("a");
    made.href = path + text.split("/").map(encodeURIComponent).join("/");
    made.textContent = text;
    return made;
  };

  source.onopen = () => { status.textContent = ""; };
  source.onerror = () => { status.textContent = LOST; };
  source.onmessage = (message) => {
    // Pages that need plans or comparisons take some work to make, so they follow less closely.
    if (live) { soon(live.dataset.every ? 2000 : 300); return; }
    if (document.getElementById("pause").checked) return;
    const event = JSON.parse(message.data);
    const row = document.createElement("tr");
    const time = document.createElement("time");
    time.dateTime = event.at;
    time.textContent = local.format(new Date(event.at));
    let what = "";
    if (event.partition_ref) what = linked(event.partition_ref, "/partitions/");
    else if (event.job_label) what = linked(event.job_label, "/sources/");
    row.append(cell("th", event.idx), cell("td", time), cell("td", event.kind), cell("td", what));
    log.prepend(row);
    while (log.rows.length > 500) log.deleteRow(-1);
  };
})();
