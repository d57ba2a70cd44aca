// Additions to lists that work without scripts: charts, and live updates.

import { drawCharts } from "./charts.js";
import { readList, rememberList } from "./neighbours.js";

const POLL_MS = 5000;

const listing = document.getElementById("listing");
drawCharts();

const compare = document.getElementById("compare");
const marked = new Set();

/** Two boxes choose the traces of a comparison; with one trace chosen already, one box does. */
function showMarked() {
  const rest = (compare.querySelector("input") ? 1 : 2) - marked.size;
  compare.classList.toggle("waits", marked.size === 0);
  compare.querySelector("button").disabled = rest !== 0;
  compare.querySelector("output").textContent = rest > 0 ? "Choose one more trace" : rest < 0 ? "Choose only two traces" : "";
  for (const box of listing.querySelectorAll("input[name=trace]")) box.checked = marked.has(box.value);
}

if (compare) {
  for (const box of listing.querySelectorAll("input[name=trace]:checked")) marked.add(box.value);
  showMarked();
  listing.addEventListener("change", (event) => {
    if (event.target.name !== "trace") return;
    if (event.target.checked) marked.add(event.target.value);
    else marked.delete(event.target.value);
    showMarked();
  });
  listing.addEventListener("click", (event) => {
    if (event.target.closest("tr[data-trace] a")) rememberList(readList(document, location.pathname + location.search));
  });
}

const live = document.querySelector(".live");
const isFirst = !["page", "offset", "end"].some(name => new URLSearchParams(location.search).has(name));
if (live && isFirst) {
  live.hidden = false;
  const box = live.querySelector("input");
  const poll = async () => {
    // A list that moves under the pointer or the focus cannot be read.
    if (!box.checked || document.hidden || listing.matches(":hover, :focus-within")) return;
    const response = await fetch(location, { headers: { accept: "text/html" } }).catch(() => null);
    if (!response?.ok) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const fresh = page.getElementById("listing");
    if (fresh && box.checked && !listing.matches(":hover, :focus-within")) {
      listing.replaceChildren(...document.adoptNode(fresh).childNodes);
      drawCharts();
      if (compare) showMarked();
    }
  };
  box.addEventListener("change", poll);
  setInterval(poll, POLL_MS);
}
