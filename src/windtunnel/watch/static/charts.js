// Curves on a canvas: means with the band from lowest to highest or smoothed, lines of plans and limits, a cross-hair, zoom
// by dragging. Used by the live pages, and inside of reports, which are one file.

const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];
const LIMITS = { plan: "--soft", warn: "--warn", bad: "--bad" };
const finite = (v) => typeof v === "number" && Number.isFinite(v);

// light-dark() is not resolved in custom properties: an element that uses it tells.
const resolved = new Map();
function colour(name) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const key = `${name}${dark}`;
  if (!resolved.has(key)) {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    resolved.set(key, getComputedStyle(probe).color);
    probe.remove();
  }
  return resolved.get(key);
}

export function short(value, digits = 4) {
  if (!finite(value)) return "–";
  const size = Math.abs(value);
  for (const [scale, letter] of [[1e12, " T"], [1e9, " B"], [1e6, " M"], [1e4, " k"]]) {
    if (size >= scale) return `${Number((value / (letter === " k" ? 1e3 : scale)).toPrecision(digits))}${letter}`;
  }
  if (size && size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

function ticks(low, high, about) {
  const raw = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  const first = Math.ceil(low / step - 1e-9);
  for (let i = 0; i < 20 && (first + i) * step <= high + step * 1e-9; i++) found.push((first + i) * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  const marks = high - low < 1.3 ? [1, 1.5, 2, 3, 4, 5, 6, 8] : high - low < 3 ? [1, 2, 5] : [1];
  for (let p = Math.floor(low); p <= Math.ceil(high); p++) for (const m of marks) found.push(p + Math.log10(m));
  const inside = found.filter((v) => v >= low && v <= high);
  return inside.length > 1 ? inside : ticks(10 ** low, 10 ** high, 5).map(Math.log10); // within less than an octave
}

// The mean of the share of a curve's points around each; null where that is no more than the point itself.
function smoothed(points, share) {
  const half = Math.floor((points.length * share) / 2);
  if (half < 1) return null;
  const [sums, counts] = [[0], [0]];
  points.forEach((p, i) => {
    sums.push(sums[i] + (finite(p[1]) ? p[1] : 0));
    counts.push(counts[i] + (finite(p[1]) ? 1 : 0));
  });
  return points.map((p, i) => {
    const reach = Math.min(half, i); // where a loss falls fast, the mean of what follows would not be near it
    const [a, b] = [i - reach, Math.min(points.length, i + reach + 1)];
    return [p[0], counts[b] > counts[a] ? (sums[b] - sums[a]) / (counts[b] - counts[a]) : null];
  });
}

// What decides how much of the y axis is shown: a smoothed curve, and the noise around it but for its spikes.
function calm(soft, points) {
  const known = points.map((p) => p[1]).filter(finite).sort((a, b) => a - b);
  const [low, high] = [known[Math.floor(0.04 * known.length)], known[Math.floor(0.96 * known.length)]];
  return soft.map((p, i) => [p[0], p[1], finite(points[i][1]) ? Math.min(high, Math.max(low, points[i][1])) : null]);
}

const START = 0.1; // of the x axis
const FAR = 2.5; // times what the rest takes up

// curves: [{name, points: [[x, mean, low, high]], colour?}]; limits: [{name, kind, value}]
export class Chart {
  constructor({ title, meaning = "", x = "step", unit = "", limits = [], log = false }) {
    this.x = x;
    this.limits = limits;
    this.curves = [];
    this.soft = [];
    this.share = 0;
    this.zoom = null;
    this.log = log;
    this.start = false;
    this.at = null;
    this.element = document.createElement("section");
    this.element.className = "card chart";
    const top = document.createElement("div");
    top.className = "top";
    const heading = document.createElement("h3");
    heading.textContent = title;
    heading.title = meaning;
    if (unit) heading.append(Object.assign(document.createElement("small"), { textContent: ` ${unit}` }));
    this.early = button("start", "Show the first steps too, which lie far from the rest", () => {
      this.start = !this.start;
      this.early.setAttribute("aria-pressed", this.start);
      this.draw();
    });
    this.early.hidden = true;
    this.whole = button("whole", "Show the whole run", () => this.zoomTo(null));
    this.whole.hidden = true;
    this.scale = button(log ? "linear" : "log", "A logarithmic scale, or a plain one", () => {
      this.log = !this.log;
      this.scale.setAttribute("aria-pressed", this.log);
      this.scale.textContent = this.log ? "linear" : "log";
      this.draw();
    });
    top.append(heading, this.early, this.scale, this.whole);
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${title}: drag to zoom`);
    this.legend = document.createElement("div");
    this.legend.className = "legend";
    this.element.append(top, this.canvas, this.legend);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  set(curves) {
    this.curves = curves;
    this.smooth(this.share);
  }

  smooth(share) {
    this.share = share;
    this.soft = this.curves.map((curve) => (share ? smoothed(curve.points, share) : null));
    this.draw();
  }

  listen() {
    const place = (event) => event.clientX - this.canvas.getBoundingClientRect().left;
    this.canvas.addEventListener("pointerdown", (event) => {
      this.from = place(event);
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      this.at = place(event);
      this.draw();
    });
    this.canvas.addEventListener("pointerup", () => {
      if (this.from !== undefined && Math.abs(this.at - this.from) > 8 && this.toX) {
        this.zoomTo([this.toX(this.from), this.toX(this.at)].sort((a, b) => a - b));
      }
      this.from = undefined;
      this.draw();
    });
    this.canvas.addEventListener("pointerleave", () => {
      this.at = null;
      this.draw();
    });
    this.canvas.addEventListener("dblclick", () => this.zoomTo(null));
  }

  zoomTo(range) {
    this.zoom = range;
    this.whole.hidden = !range;
    this.draw();
  }

  shown(lines) {
    const [low, high] = this.zoom ?? [-Infinity, Infinity];
    return lines.map((points) => points && points.filter((p) => finite(p[0]) && p[0] >= low && p[0] <= high));
  }

  extent(parts, from, y, ok) {
    let [left, right, low, high, count] = [Infinity, -Infinity, Infinity, -Infinity, 0];
    for (const points of parts) for (const p of points) if (p[0] >= from) {
      left = Math.min(left, p[0]);
      right = Math.max(right, p[0]);
      count++;
      for (let k = 1; k < p.length; k++) if (ok(p[k])) {
        low = Math.min(low, y(p[k]));
        high = Math.max(high, y(p[k]));
      }
    }
    return { left, right, low, high, count };
  }

  // The range of what is shown, on the scale it is drawn on. What falls far at its start, as a loss does, would be a flat
  // line after it: then the rest decides, and the start leaves the picture.
  range(parts) {
    const y = (v) => (this.log ? Math.log10(v) : v);
    const ok = (v) => finite(v) && (!this.log || v > 0);
    const all = this.extent(parts, -Infinity, y, ok);
    const { left: first, right: last } = all;
    const late = this.extent(parts, first + START * (last - first), y, ok);
    const rest = late.high - late.low;
    const far = !this.zoom && !this.log && late.count >= 20 && rest > 2e-3 * Math.abs(late.high) && all.high - all.low > FAR * rest;
    this.early.hidden = !far;
    let [left, right, low, high] = [first, last, ...(far && !this.start ? [late.low, late.high] : [all.low, all.high])];
    if (low > high) return null;
    const span = high - low || Math.abs(high) || 1;
    for (const { value } of this.limits) {
      // One that is far away would make the curve a flat line: the legend tells it.
      if (ok(value) && y(value) > low - span && y(value) < high + span) {
        low = Math.min(low, y(value));
        high = Math.max(high, y(value));
      }
    }
    if (left === right) [left, right] = [left - 0.5, right + 0.5];
    // What differs in its last digits only is drawn as the flat line that it is.
    const flat = high - low < 1e-9 * Math.max(Math.abs(low), Math.abs(high));
    const edge = 0.06 * ((flat ? 0 : high - low) || Math.abs(high) || 1);
    const base = !this.log && low >= 0 && low - edge < 0 ? 0 : low - edge;
    return { left, right, low: base, high: high + edge, y, ok };
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const c = this.canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.font = "11px system-ui, sans-serif";
    const parts = this.shown(this.curves.map((curve) => curve.points));
    const soft = this.shown(this.soft);
    const r = this.range(parts.map((points, i) => (soft[i] ? calm(soft[i], points) : points)));
    if (!r) {
      c.fillStyle = colour("--soft");
      c.fillText("nothing to draw yet", 12, height / 2);
      return;
    }
    const box = { left: 50, right: width - 8, top: 8, bottom: height - 26 };
    const X = (v) => box.left + ((v - r.left) / (r.right - r.left)) * (box.right - box.left);
    const Y = (v) => box.bottom - ((r.y(v) - r.low) / (r.high - r.low)) * (box.bottom - box.top);
    this.toX = (place) => r.left + ((place - box.left) / (box.right - box.left)) * (r.right - r.left);
    this.grid(c, box, r, X, width);
    c.save();
    c.beginPath();
    c.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
    c.clip();
    parts.forEach((points, i) => this.curve(c, points, soft[i], this.colourOf(i), X, Y, r.ok));
    this.limits.forEach((limit) => this.line(c, limit, box, r, Y));
    c.restore();
    const near = this.cross(c, box, parts);
    this.tell(parts.map((points, i) => soft[i] ?? points), near);
  }

  colourOf(i) {
    return this.curves[i].colour ?? COLOURS[i % COLOURS.length];
  }

  grid(c, box, r, X, width) {
    c.strokeStyle = colour("--line");
    c.fillStyle = colour("--soft");
    c.lineWidth = 1;
    c.textAlign = "right";
    c.textBaseline = "middle";
    const levels = this.log ? logTicks(r.low, r.high) : ticks(r.low, r.high, 5);
    const values = this.log ? levels.map((t) => 10 ** t) : levels;
    const most = Math.max(...values.map(Math.abs), this.log ? 0 : Math.abs(r.high));
    const apart = levels.length > 1 ? Math.ceil(Math.log10(most / (values[1] - values[0]))) + 1 : 3;
    for (const [i, t] of levels.entries()) {
      const place = Math.round(box.bottom - ((t - r.low) / (r.high - r.low)) * (box.bottom - box.top)) + 0.5;
      c.beginPath();
      c.moveTo(box.left, place);
      c.lineTo(box.right, place);
      c.stroke();
      c.fillText(short(values[i], Math.min(6, Math.max(3, apart))), box.left - 6, place);
    }
    c.textAlign = "center";
    c.textBaseline = "top";
    let about = Math.max(2, Math.floor(width / 110));
    let marks = ticks(r.left, r.right, about);
    while (marks.length < 2 && about < 20) marks = ticks(r.left, r.right, ++about); // one alone tells no scale
    for (const t of marks) c.fillText(short(t, 3), Math.min(Math.max(X(t), box.left + 8), box.right - 16), box.bottom + 5);
    c.textAlign = "right";
    c.fillText(this.x, box.right, box.bottom + 14);
  }

  curve(c, points, soft, name, X, Y, ok) {
    c.fillStyle = c.strokeStyle = colour(name);
    const banded = soft ? [] : points.filter((p) => ok(p[2]) && ok(p[3]));
    if (banded.some((p) => p[2] !== p[3])) {
      c.globalAlpha = 0.18;
      c.beginPath();
      banded.forEach((p, i) => c[i ? "lineTo" : "moveTo"](X(p[0]), Y(p[3])));
      banded.reverse().forEach((p) => c.lineTo(X(p[0]), Y(p[2])));
      c.fill();
      c.globalAlpha = 1;
    }
    c.lineJoin = "round";
    if (soft) {
      c.globalAlpha = 0.25;
      this.trace(c, points, 1, X, Y, ok);
      c.globalAlpha = 1;
    }
    this.trace(c, soft ?? points, 1.7, X, Y, ok);
    if (points.length <= 40) for (const p of points) if (ok(p[1])) {
      c.beginPath();
      c.arc(X(p[0]), Y(p[1]), 2.4, 0, 7);
      c.fill();
    }
  }

  trace(c, points, width, X, Y, ok) {
    c.lineWidth = width;
    c.beginPath();
    let drawing = false;
    for (const p of points) {
      if (ok(p[1])) c[drawing ? "lineTo" : "moveTo"](X(p[0]), Y(p[1]));
      drawing = ok(p[1]);
    }
    c.stroke();
  }

  line(c, limit, box, r, Y) {
    if (!r.ok(limit.value)) return;
    c.strokeStyle = colour(LIMITS[limit.kind] ?? "--soft");
    c.lineWidth = 1.3;
    c.setLineDash([6, 4]);
    c.beginPath();
    c.moveTo(box.left, Y(limit.value));
    c.lineTo(box.right, Y(limit.value));
    c.stroke();
    c.setLineDash([]);
  }

  // The cross-hair, and the stretch being dragged; returns where on the x axis.
  cross(c, box, parts) {
    if (this.at === null || this.at < box.left || this.at > box.right) return null;
    c.strokeStyle = colour("--soft");
    c.beginPath();
    c.moveTo(this.at, box.top);
    c.lineTo(this.at, box.bottom);
    c.stroke();
    if (this.from !== undefined) {
      c.globalAlpha = 0.15;
      c.fillStyle = colour("--accent");
      c.fillRect(Math.min(this.from, this.at), box.top, Math.abs(this.at - this.from), box.bottom - box.top);
      c.globalAlpha = 1;
    }
    return this.toX(this.at);
  }

  tell(parts, near) {
    const chips = this.curves.map((curve, i) => {
      const points = parts[i];
      const point = near === null ? points.at(-1) : nearest(points, near);
      const where = near !== null && point ? ` at ${short(point[0])}` : "";
      return chip(this.colourOf(i), `${curve.name} ${point ? short(point[1]) : "–"}${where}`);
    });
    for (const limit of this.limits) chips.push(chip(LIMITS[limit.kind] ?? "--soft", `${limit.name} ${short(limit.value)}`));
    this.legend.replaceChildren(...chips);
  }
}

function chip(name, text) {
  const made = document.createElement("span");
  const mark = document.createElement("i");
  mark.style.background = `var(${name})`;
  made.append(mark, text);
  return made;
}

function nearest(points, x) {
  let best = null;
  for (const p of points) if (best === null || Math.abs(p[0] - x) < Math.abs(best[0] - x)) best = p;
  return best;
}

function button(text, title, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.title = title;
  made.onclick = act;
  return made;
}

export function spark(canvas, values) {
  const [width, height, ratio] = [110, 26, devicePixelRatio || 1];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const c = canvas.getContext("2d");
  c.scale(ratio, ratio);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  c.strokeStyle = colour("--c0");
  c.lineWidth = 1.5;
  c.beginPath();
  values.forEach((v, i) => {
    const x = 1 + (i / Math.max(1, values.length - 1)) * (width - 2);
    c[i ? "lineTo" : "moveTo"](x, height - 3 - ((v - low) / (high - low || 1)) * (height - 6));
  });
  c.stroke();
}
