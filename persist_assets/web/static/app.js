"use strict";
// Keeps pages up to date; without it they are what they were when they were loaded.
(() => {
  const live = document.getElementById("live");
  const log = document.getElementById("log");
  if (!live && !log) return;
  const status = document.getElementById("status");
  const place = (live || log).dataset.since;
  const source = new EventSource("/stream" + (place ? "?since=" + encodeURIComponent(place) : ""));
  let due = null;

  const refresh = async () => {
    due = null;
    if (live.contains(document.activeElement) && document.activeElement.matches("input, select")) return;
    const url = new URL(location.href);
    url.searchParams.delete("made");
    const answer = await fetch(url.pathname === "/wants" ? "/" : url, { credentials: "same-origin" });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("live");
    if (fresh) live.replaceChildren(...fresh.childNodes);
  };

  const cell = (tag, text) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (tag === "th") made.scope = "row";
    return made;
  };

  source.onopen = () => { status.textContent = ""; };
  source.onerror = () => { status.textContent = "not connected: what is shown may be old"; };
  source.onmessage = (message) => {
    if (live) {
      if (due === null) due = setTimeout(refresh, 300);
      return;
    }
    if (document.getElementById("pause").checked) return;
    const event = JSON.parse(message.data);
    const row = document.createElement("tr");
    const what = event.partition_ref || event.job_label || "";
    row.append(cell("th", event.idx), cell("td", event.at.slice(0, 19).replace("T", " ") + "Z"), cell("td", event.kind), cell("td", what));
    log.prepend(row);
    while (log.rows.length > 500) log.deleteRow(-1);
  };
})();
