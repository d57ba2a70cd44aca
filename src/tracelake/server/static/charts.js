// Charts over time. uPlot draws them from the table of intervals, which has the same numbers as text and links.

const ZONE_KEY = "tracelake.time-zone";
const DASHES = [[], [], [5, 4], [2, 3], [9, 3], [1, 5]];
// Interval of the labels, format, and the format if the year, month or day changes; see the axes of uPlot.
const TIMES = [
  [365 * 86400, "{YYYY}", null, null, null, null, null, null, 1],
  [28 * 86400, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [86400, "{D} {MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [60, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
  [0.001, "{HH}:{mm}:{ss}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
];
let drawn = [];

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const small = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });

function number(value) {
  return value > 0 && value < 1 ? small.format(value) : compact.format(value);
}

/** Steps of the axis of a count, which has no fractions. */
const WHOLE = Array.from({ length: 48 }, (_, place) => [1, 2, 5][place % 3] * 10 ** Math.floor(place / 3));

const UNITS = {
  count: number,
  cost: (value) => `$${number(value)}`,
  ns: (value) => {
    const [size, unit] = value >= 1e9 ? [1e9, "s"] : value >= 1e6 ? [1e6, "ms"] : [1e3, "µs"];
    return value ? `${number(value / size)} ${unit}` : "0";
  },
};

/** The table of a page: its rows by interval, its time range in nanoseconds, and the middle of each interval in seconds. */
function readTable(table) {
  const rows = new Map([...table.tBodies[0].rows].map((row) => [Number(row.dataset.interval), row]));
  const low = BigInt(table.dataset.low), length = BigInt(table.dataset.high) - low + 1n;
  const count = Number(table.dataset.intervals);
  const at = (place) => Number(low) / 1e9 + (place * Number(length)) / 1e9 / count;
  return { rows, low, length, range: [at(0), at(count)], times: Array.from({ length: count }, (_, place) => at(place + 0.5)), heads: [...table.tHead.rows[0].cells] };
}

function readSeries(table, name) {
  const column = table.heads.findIndex((head) => head.dataset.column === name);
  const head = table.heads[column], cells = table.times.map((_, place) => table.rows.get(place)?.cells[column]);
  return { label: head.dataset.label, unit: head.dataset.unit, color: style(head.dataset.color), cells, values: cells.map((cell) => Number(cell?.dataset.value) || 0) };
}

function open(range) {
  const url = new URL(location);
  for (const name of ["last", "page", "offset"]) url.searchParams.delete(name);
  for (const name of ["start", "end"]) url.searchParams.set(name, range[name]);
  location.assign(url);
}

/** Let a finger drag as a mouse does: uPlot hears only the mouse. */
function hearTouch(over) {
  for (const [touch, mouse] of [["pointerdown", "mousedown"], ["pointermove", "mousemove"], ["pointerup", "mouseup"]]) {
    over.addEventListener(touch, (event) => {
      const { clientX, clientY } = event;
      if (event.pointerType === "touch") over.dispatchEvent(new MouseEvent(mouse, { bubbles: true, button: 0, clientX, clientY }));
    });
  }
}

function draw(figure, table) {
  const place = figure.querySelector(".drawing"), kind = figure.dataset.kind;
  const found = figure.dataset.columns.split(" ").map((name) => readSeries(table, name));
  const values = found.map((each) => each.values);
  if (kind === "lines") found.forEach(({ cells }, number) => cells.forEach((cell, index) => cell?.dataset.value ?? (values[number][index] = null)));
  // The first series is drawn first, and the others over it.
  if (kind === "stack") for (let number = values.length - 2; number >= 0; number--) values[number] = values[number].map((value, index) => value + values[number + 1][index]);
  let dragged = false;
  const series = found.map(({ label, color, cells }, index) => ({
    label,
    stroke: color,
    value: (_, __, ___, at) => (at === null ? "" : cells[at]?.textContent || "0"),
    ...(kind === "lines"
      ? { width: 2, points: { size: 4 }, dash: DASHES[index], spanGaps: true }
      : { fill: color, width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.8, 40], radius: 0.15 }) }),
  }));
  const axis = { stroke: style("--soft"), font: "11px system-ui, sans-serif", grid: { stroke: style("--line"), width: 1 }, ticks: { show: false } };
  const plot = new uPlot(
    {
      width: place.clientWidth,
      height: place.clientHeight,
      padding: [8, 8, 0, 0],
      ...(localStorage.getItem(ZONE_KEY) === "local" ? {} : { tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC") }),
      scales: { x: { range: () => table.range }, y: { range: (_, __, most) => [0, most > 0 ? most * 1.06 : 1] } },
      axes: [
        { ...axis, size: 32, space: 76, grid: { show: false }, values: TIMES },
        { ...axis, size: 52, space: 26, gap: 6, ...(found[0].unit === "count" ? { incrs: WHOLE } : {}), values: (_, splits) => splits.map(UNITS[found[0].unit]) },
      ],
      series: [{ label: "", value: (_, __, ___, at) => (at === null ? "" : (table.rows.get(at)?.cells[0].textContent ?? "")) }, ...series],
      cursor: { y: false, points: { show: kind === "lines" }, drag: { setScale: false }, sync: { key: "time", filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } } },
      legend: { mount: (_, element) => figure.querySelector(".legend").append(element) },
      hooks: {
        setSelect: [
          ({ select, over }) => {
            const share = (pixels) => table.low + (table.length * BigInt(Math.round((pixels / over.clientWidth) * 1e6))) / 1000000n;
            if ((dragged = select.width > 3)) open({ start: share(select.left), end: share(select.left + select.width) });
          },
        ],
      },
    },
    [table.times, ...values],
    place,
  );
  plot.over.addEventListener("click", () => (dragged ? (dragged = false) : table.rows.get(plot.cursor.idx)?.querySelector("a").click()));
  hearTouch(plot.over);
  const observer = new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: place.clientHeight }));
  observer.observe(place);
  return () => {
    observer.disconnect();
    plot.destroy();
    figure.querySelector(".u-legend")?.remove();
  };
}

/** Draw the charts of the page again, after its content, colours or time zone changed. */
export function drawCharts() {
  for (const remove of drawn) remove();
  drawn = [];
  const data = document.querySelector("table[data-intervals]");
  if (!data) return;
  const details = data.closest("details");
  if (!details.classList.contains("ready")) {
    details.classList.add("ready");
    details.open = false;
  }
  const table = readTable(data);
  drawn = [...document.querySelectorAll("figure[data-columns]")].map((figure) => draw(figure, table));
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
document.querySelector(".time-zone")?.addEventListener("change", () => setTimeout(drawCharts));
