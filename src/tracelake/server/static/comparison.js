// Choosing an aligned pair of spans without loading the page again. The server escapes all text from senders.

import "./messages.js";

let asked = 0;

document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-pair]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const ticket = ++asked;
  const response = await fetch(link.href).catch(() => null);
  if (ticket !== asked) return;
  if (!response?.ok) return location.assign(link.href);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  document.getElementById("pair").replaceWith(document.adoptNode(page.getElementById("pair")));
  for (const row of document.querySelectorAll(".pairs tr.chosen")) row.classList.remove("chosen");
  for (const other of document.querySelectorAll(".pairs a[aria-current]")) other.removeAttribute("aria-current");
  link.closest("tr").classList.add("chosen");
  link.setAttribute("aria-current", "true");
  history.replaceState(null, "", link.href);
  if (matchMedia("(max-width: 900px)").matches) document.getElementById("pair").scrollIntoView();
});
