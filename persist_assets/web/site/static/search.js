"use strict";
// Shows the sources that have every word that is searched for; without it all are shown.
(() => {
  const rows = [...document.getElementById("sources").tBodies[0].rows];
  const searched = JSON.parse(document.getElementById("searched").textContent);
  const query = document.getElementById("query");
  const found = document.getElementById("found");
  const form = document.getElementById("search");

  const show = () => {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    let n = 0;
    rows.forEach((row, at) => {
      const { text, columns } = searched[at];
      const matching = columns.filter((c) => words.some((w) => c.toLowerCase().includes(w)));
      const fits = words.every((w) => text.includes(w) || columns.some((c) => c.toLowerCase().includes(w)));
      row.hidden = !fits;
      row.querySelector(".matched").textContent = fits && words.length ? matching.join(", ") : "";
      n += fits;
    });
    found.textContent = words.length ? `${n} of ${rows.length} sources` : "";
  };

  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  query.addEventListener("input", show);
})();
