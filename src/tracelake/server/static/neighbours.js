// The previous and the next trace of the list that the user came from. The list is in the storage of the tab.

const KEY = "tracelake.list";

/** Read a list of traces from its page: ids in order, and the addresses of the pages before and after. */
export function readList(page, address) {
  const ids = [...page.querySelectorAll("tr[data-trace]")].map((row) => row.dataset.trace);
  const url = (rel) => page.querySelector(`.pages a[rel="${rel}"]`)?.getAttribute("href") ?? null;
  return { ids, address, previous: url("prev"), next: url("next") };
}

export function rememberList(list) {
  sessionStorage.setItem(KEY, JSON.stringify(list));
}

function remembered() {
  try {
    const list = JSON.parse(sessionStorage.getItem(KEY));
    return Array.isArray(list?.ids) ? list : null;
  } catch {
    return null;
  }
}

const trace = document.querySelector("[data-trace]")?.dataset.trace;
const list = remembered();
const place = list?.ids.indexOf(trace) ?? -1;

/** The id of a neighbour, if the page of the list has it. */
function idOf(side) {
  return list.ids[place + (side === "next" ? 1 : -1)];
}

export async function openNeighbour(side) {
  if (place < 0) return;
  let id = idOf(side);
  if (!id) {
    const address = list[side];
    const response = address && (await fetch(address).catch(() => null));
    if (!response?.ok) return;
    const other = readList(new DOMParser().parseFromString(await response.text(), "text/html"), address);
    id = other.ids.at(side === "next" ? 0 : -1);
    if (id) rememberList(other);
  }
  if (id) location.assign(`/traces/${encodeURIComponent(id)}`);
}

function show(nav) {
  const add = (tag, text, properties) => nav.append(Object.assign(document.createElement(tag), { textContent: text }, properties), " ");
  for (const [side, text, label] of [["previous", "←", "Previous trace"], ["next", "→", "Next trace"]]) {
    const isThere = idOf(side) ?? list[side];
    add("button", text, { type: "button", className: "copy-like", ariaLabel: label, title: label, disabled: !isThere, onclick: () => openNeighbour(side) });
    if (side === "previous") add("a", `${place + 1} of ${list.ids.length}`, { href: list.address, title: "Back to the list" });
  }
  nav.hidden = false;
}

const nav = document.querySelector(".neighbours");
if (nav && place >= 0) show(nav);
