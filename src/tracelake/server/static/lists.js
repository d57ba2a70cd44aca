// Additions to lists that work without scripts: a brush on the chart, and live updates.

import { readList, rememberList } from "./neighbours.js";

const POLL_MS = 5000;

function brush(svg) {
  let from = null, area = null;
  const at = event => {
    const box = svg.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  };
  const show = to => {
    const [left, right] = [Math.min(from, to), Math.max(from, to)];
    area.setAttribute("x", 600 * left);
    area.setAttribute("width", 600 * (right - left));
    return [left, right];
  };
  svg.addEventListener("dragstart", event => event.preventDefault());
  svg.addEventListener("pointerdown", event => { if (event.button === 0) from = at(event); });
  svg.addEventListener("pointermove", event => {
    if (from === null) return;
    if (area === null) {
      if (Math.abs(at(event) - from) < 0.01) return;
      area = document.createElementNS(svg.namespaceURI, "rect");
      area.classList.add("brush");
      area.setAttribute("height", 100);
      svg.append(area);
      svg.setPointerCapture(event.pointerId);
    }
    show(at(event));
  });
  svg.addEventListener("pointercancel", () => { from = null; area?.remove(); area = null; });
  svg.addEventListener("pointerup", event => {
    if (area !== null) {
      const [left, right] = show(at(event)), low = BigInt(svg.dataset.low), length = BigInt(svg.dataset.high) - low;
      const moment = share => (low + length * BigInt(Math.round(share * 1e6)) / 1000000n).toString();
      const url = new URL(location);
      for (const name of ["last", "page", "offset"]) url.searchParams.delete(name);
      url.searchParams.set("start", moment(left));
      url.searchParams.set("end", moment(right));
      location.assign(url);
    }
    from = null;
  });
  svg.addEventListener("click", event => { if (area !== null) event.preventDefault(); }, true);
}

function begin(listing) {
  for (const svg of listing.querySelectorAll("svg[data-low]")) brush(svg);
}

const listing = document.getElementById("listing");
begin(listing);

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
      begin(listing);
      if (compare) showMarked();
    }
  };
  box.addEventListener("change", poll);
  setInterval(poll, POLL_MS);
}
