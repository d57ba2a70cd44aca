// Times in UTC, as the server writes them, or in the time zone of the browser. The choice is remembered.

const KEY = "tracelake.time-zone";
const box = document.querySelector(".time-zone");
const zone = new Intl.DateTimeFormat().resolvedOptions().timeZone;

function isLocal() {
  return localStorage.getItem(KEY) === "local";
}

/** The local form of a time, with as many digits as the text in UTC has. */
function localText(time, utc) {
  const at = new Date(time.dateTime.replace(" ", "T"));
  if (Number.isNaN(at.getTime())) return utc;
  const pad = (number) => String(number).padStart(2, "0");
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  const fraction = /\.\d+/.exec(utc)?.[0] ?? "";
  const name = / UTC/.test(utc) ? ` ${zone}` : "";
  return /\d:\d\d:\d/.test(utc) ? `${day} ${clock}${fraction}${name}` : `${day} ${clock.slice(0, 5)}${name}`;
}

const ABSOLUTE = /^\d{4}-\d\d-\d\d \d\d:\d\d/;

function show(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    time.dataset.text ??= time.textContent;
    time.dataset.title ??= time.title;
    const { text, title } = time.dataset;
    const shown = isLocal() && ABSOLUTE.test(text) ? localText(time, text) : text;
    if (time.textContent !== shown) time.textContent = shown;
    time.title = isLocal() && ABSOLUTE.test(title) ? localText(time, title) : title;
  }
}

/** Show the times of content that came later. */
const observer = new MutationObserver((changes) => {
  for (const change of changes) {
    for (const node of change.addedNodes) if (node.nodeType === Node.ELEMENT_NODE) show(node.parentElement ?? node);
  }
});

if (box) {
  box.hidden = false;
  box.querySelector("span").textContent = `local time (${zone})`;
  box.querySelector(`[value="${isLocal() ? "local" : "utc"}"]`).checked = true;
  box.addEventListener("change", (event) => {
    localStorage.setItem(KEY, event.target.value);
    show(document);
  });
}
if (isLocal()) show(document);
observer.observe(document.body, { childList: true, subtree: true });
