// The curves of a report, which stands behind charts.js and curves.js in one file: nothing is fetched. Another report's
// curves are read out of its file, when a reader chooses it.

const found = JSON.parse(document.getElementById("curves").textContent);
const bar = document.getElementById("bar");
const places = [...document.querySelectorAll("[data-charts]")];
const SMOOTHING = 2; // percent

function curvesOf(part, run, axis) {
  return part.names.map((name) => ({ name: name.replaceAll("_", " "), points: over(part.series[name], run.clock, axis) }));
}

// The charts of one run, each where the page has a place for it, or of several, a chart for each series.
function show(runs) {
  const axis = axisOf(runs);
  if (runs.length > 1 && [...axis.options].some((option) => option.value === "tokens")) axis.value = "tokens";
  const shown = [];
  for (const place of places) {
    const mine = (part) => (part.place ?? (part.more ? "more" : "curves")) === place.dataset.charts;
    const parts = runs.length > 1 && ["curves", "more"].includes(place.dataset.charts)
      ? beside(runs.map((run) => ({ ...run, charts: run.charts.filter(mine).map((part) => ({ ...part, more: false })) })))
      : runs[0].charts.filter(mine).map((part) => ({ ...part, curves: (x) => curvesOf(part, runs[0], x) }));
    const charts = parts.map((part) => ({ part, chart: new Chart(part) }));
    charts.forEach(({ part, chart }) => {
      if (part.meaning) chart.element.append(Object.assign(document.createElement("p"), { textContent: part.meaning }));
    });
    place.replaceChildren(...charts.map(({ chart }) => chart.element));
    place.closest("[data-holder]")?.toggleAttribute("hidden", !charts.length);
    shown.push(...charts);
  }
  const draw = () => shown.forEach(({ part, chart }) => {
    chart.x = part.x ?? axis.value;
    chart.set(part.curves(chart.x));
  });
  axis.onchange = () => {
    shown.forEach(({ chart }) => chart.zoomTo(null));
    draw();
  };
  const label = document.createElement("label");
  label.append("over ", axis);
  label.hidden = axis.options.length < 2;
  bar.replaceChildren(smoothing(SMOOTHING, (share) => shown.forEach(({ chart }) => chart.smooth(share))), label, ...overlay(runs));
  draw();
}

// A button that asks for other reports, and one that leaves them out again.
function overlay(runs) {
  const files = Object.assign(document.createElement("input"), { type: "file", accept: ".html", multiple: true, hidden: true });
  const said = document.createElement("span");
  files.onchange = async () => {
    const read = await Promise.all([...files.files].map(async (file) => ({ file: file.name, runs: runsIn(await file.text()) })));
    const empty = read.filter((one) => !one.runs).map((one) => one.file);
    const others = read.flatMap((one) => one.runs ?? []);
    if (others.length) show(named([...runs, ...others]));
    if (empty.length) (others.length ? bar.lastChild : said).textContent = `no curves in ${empty.join(", ")}`;
  };
  const more = button("overlay …", "Draw the curves of other reports beside these: choose their files", () => files.click());
  const alone = button("this run alone", "Leave the others out", () => show(found.runs));
  alone.hidden = runs.length === found.runs.length;
  return [more, alone, files, said];
}

function runsIn(text) {
  try {
    return JSON.parse(new DOMParser().parseFromString(text, "text/html").getElementById("curves").textContent).runs;
  } catch {
    return null;
  }
}

// Runs of one name are told apart by a number.
function named(runs) {
  const seen = new Map();
  return runs.map((run) => {
    const count = (seen.get(run.name) ?? 0) + 1;
    seen.set(run.name, count);
    return count > 1 ? { ...run, name: `${run.name} (${count})` } : run;
  });
}

show(found.runs);
