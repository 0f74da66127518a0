// What all pages with curves share: the x axis, smoothing, and several runs on one chart.

const AXES = { step: 0, tokens: 1, hours: 2, dollars: 3 };

// A choice of the x axes of which a run knows something.
export function axisOf(runs) {
  const known = (x) => x === "step" || runs.some((run) => run.clock.some((c) => Number.isFinite(c[AXES[x]])));
  const made = document.createElement("select");
  made.setAttribute("aria-label", "x axis");
  made.append(...Object.keys(AXES).filter(known).map((x) => new Option(x)));
  return made;
}

// A slider from 0 to a fifth of the curve.
export function smoothing(percent, changed) {
  const made = document.createElement("label");
  const range = Object.assign(document.createElement("input"), { type: "range", min: 0, max: 20, step: 1, value: percent });
  const told = document.createElement("span");
  const tell = () => {
    told.textContent = range.value === "0" ? "off" : `${range.value} %`;
    changed(range.value / 100);
  };
  made.className = "soft smoothing";
  made.title = "The mean of so much of a curve around each point";
  made.append("smoothing ", range, " ", told);
  range.oninput = tell;
  tell();
  return made;
}

// Puts points over tokens, hours or dollars, between the steps of which it is known when they were.
export function over(points, clock, axis) {
  const k = AXES[axis];
  if (!k) return points;
  const known = clock.filter((c) => Number.isFinite(c[k]));
  if (!known.length) return [];
  let i = 0;
  const found = [];
  for (const p of points) {
    while (i + 1 < known.length && known[i + 1][0] < p[0]) i++;
    const [a, b] = [known[i], known[Math.min(i + 1, known.length - 1)]];
    const share = b[0] > a[0] ? Math.min(1, Math.max(0, (p[0] - a[0]) / (b[0] - a[0]))) : 0;
    found.push([a[k] + share * (b[k] - a[k]), ...p.slice(1)]);
  }
  return found;
}

// A chart for each series, with a curve of every run that has it.
export function beside(runs) {
  const found = new Map();
  for (const run of runs) for (const part of run.charts) for (const name of part.names) {
    if (!part.more || found.has(name)) found.set(name, { meaning: part.meanings?.[name] ?? part.meaning, unit: part.unit });
  }
  return [...found].map(([name, told]) => ({
    ...told,
    title: name.replaceAll("_", " "),
    curves: (axis) => runs.flatMap((run, i) => {
      const points = run.charts.find((part) => name in part.series)?.series[name];
      return points ? [{ name: run.name, colour: `--c${i % 8}`, points: over(points, run.clock, axis) }] : [];
    }),
  }));
}
