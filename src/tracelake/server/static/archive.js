// Passes and restores from the page of the archive: each form sends JSON, and waits for its operation to end.

const POLL_MS = 1000;
const said = document.querySelector("#said");

for (const form of document.querySelectorAll("form[data-action]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    button.disabled = true;
    try {
      say(await finished(await send(form)));
      location.reload();
    } catch (problem) {
      show(problem.message, true);
      button.disabled = false;
    }
  });
}

const kept = sessionStorage.getItem("archive");
if (kept && said) {
  sessionStorage.removeItem("archive");
  show(...JSON.parse(kept));
}

async function send(form) {
  const field = form.dataset.list && form.elements[form.dataset.list];
  const body = field ? JSON.stringify({ [form.dataset.list]: field.value.split(/[\s,]+/).filter(Boolean) }) : form.dataset.body;
  show("Under way …");
  return answered(await fetch(form.dataset.action, { method: "POST", headers: { "Content-Type": "application/json" }, body }));
}

async function answered(response) {
  const operation = await response.json();
  if (!response.ok) throw new Error(operation.error);
  return operation;
}

async function finished(operation) {
  while (operation.state === "running") {
    show(`Under way: ${outcome(operation)}`);
    await new Promise((done) => setTimeout(done, POLL_MS));
    operation = await answered(await fetch(`/api/v1/archive/operations/${operation.id}`));
  }
  if (operation.state === "failed") throw new Error(operation.error);
  return outcome(operation);
}

function outcome({ kind, result }) {
  if (!result) return kind;
  if (kind === "pass") return Object.entries(result.traces).map(([fate, count]) => `${count} ${fate}`).join(", ") || "nothing was due";
  const failed = Object.entries(result.failed ?? {}).map(([id, reason]) => `${id} stays as it is: ${reason}`);
  const restored = Object.entries(result.restored ?? {}).map(([id, was]) => `${id} ${was ? "is hot again" : "was hot already"}`);
  return [...restored, ...failed].join("; ") || kind;
}

// What is said outlives the reload that shows what has changed.
function say(text) {
  show(text);
  sessionStorage.setItem("archive", JSON.stringify([text]));
}

function show(text, failed = false) {
  said.textContent = text;
  said.className = failed ? "problem" : "note";
  said.hidden = false;
}
