// Pages of all runs and of one, live. Everything that a run wrote is put in as text, never as HTML.

import { Chart, short, spark } from "/static/charts.js";
import { axisOf, beside, over, smoothing } from "/static/curves.js";

const $ = (id) => document.getElementById(id);
const main = $("main");
const finite = (v) => typeof v === "number" && Number.isFinite(v);
const MOST_POINTS = 1200;
let stop = null; // ends the stream of the page that is shown

// --- what the server says ---

function token() {
  return sessionStorage.getItem("windtunnel-token") ?? "";
}

class Denied extends Error {}

async function get(path, signal) {
  const response = await fetch(path, { headers: token() ? { Authorization: `Bearer ${token()}` } : {}, signal });
  if (response.status === 401) throw new Denied();
  if (!response.ok) throw new Error((await response.json().catch(() => null))?.error?.message ?? `the server answered ${response.status}`);
  return response;
}

// Calls told with what each event holds, and tries again for as long as the page is shown.
async function follow(path, told, signal) {
  for (let wait = 500; !signal.aborted; wait = Math.min(wait * 2, 8000)) {
    try {
      const reader = (await get(path(), signal)).body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        wait = 500;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          const data = part.split("\n").find((line) => line.startsWith("data: "));
          if (!data) continue;
          const news = JSON.parse(data.slice(6));
          if (part.startsWith("event: problem")) throw new Error(news.message);
          told(news);
          state("live");
        }
      }
      state("the server has ended", true);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Denied) return ask();
      state(`not connected: ${error.message}`, true);
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

function state(text, bad = false) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}

// --- small parts ---

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made[name] = value;
    else if (name in made && name !== "colSpan") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function duration(seconds) {
  if (!finite(seconds)) return "–";
  const s = Math.max(0, Math.round(seconds));
  const [d, h, m] = [Math.floor(s / 86400), Math.floor((s % 86400) / 3600), Math.floor((s % 3600) / 60)];
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  return m ? `${m} min ${s % 60} s` : `${s} s`;
}

const percent = (v, digits = 1) => (finite(v) ? `${(100 * v).toFixed(digits)} %` : "–");
const dollars = (v) => (finite(v) ? `$${v.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}` : "–");
const loss = (v) => (finite(v) ? v.toFixed(4) : typeof v === "string" ? v : "–");

function standing(status, silent) {
  if (status === "running" && finite(silent)) return ["warn", "silent", `nothing has moved for ${duration(silent)}`];
  if (status === "running") return ["good live", "running", ""];
  return [{ done: "good", failed: "bad", damaged: "bad", stopped: "warn" }[status] ?? "", status, ""];
}

function pill(status, silent) {
  const [kind, word, title] = standing(status, silent);
  return el("span", { class: `pill ${kind}`, title }, word);
}

const link = (name) => `#/run/${encodeURIComponent(name)}`;

// --- all runs ---

const chosen = new Set();

function showRuns(signal) {
  document.title = "windtunnel: runs";
  const sums = el("span", { class: "sums" }, "reading …");
  const compare = el("button", { type: "button", disabled: true, onclick: () => (location.hash = `#/compare/${[...chosen].map(encodeURIComponent).join(",")}`) }, "overlay");
  const head = ["", "run", "status", "progress", "step", "loss", "", "validation", "spent", "planned", "last step"];
  const numbers = ["step", "loss", "validation", "spent", "planned"];
  const body = el("tbody");
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...head.map((h) => el("th", { class: numbers.includes(h) ? "n" : "" }, h)))), body);
  main.replaceChildren(el("div", { class: "bar" }, sums, el("span", { class: "right" }, compare)), table);
  const rows = new Map();
  const label = () => {
    compare.disabled = chosen.size < 2;
    compare.textContent = chosen.size < 2 ? "choose runs to overlay" : `overlay ${chosen.size} runs`;
  };
  label();
  const told = ({ root, runs }) => {
    $("where").textContent = root;
    const spent = runs.reduce((sum, run) => sum + (run.spent_dollars ?? 0), 0);
    const silent = runs.filter((run) => finite(run.silent)).length;
    const count = (status) => runs.filter((run) => run.status === status).length;
    sums.textContent = [`${runs.length} runs`, `${count("running")} running`, silent ? `${silent} silent` : null,
      count("failed") ? `${count("failed")} failed` : null, `${dollars(spent)} spent`].filter(Boolean).join(" · ");
    for (const run of runs) {
      const key = JSON.stringify(run);
      if (rows.get(run.name)?.key === key) continue;
      const row = runRow(run, label);
      rows.get(run.name)?.row.replaceWith(row);
      rows.set(run.name, { key, row });
    }
    const order = runs.map((run) => rows.get(run.name).row);
    if (order.some((row, i) => body.children[i] !== row) || body.children.length !== order.length) body.replaceChildren(...order);
    if (!runs.length) body.replaceChildren(el("tr", {}, el("td", { class: "wide", colspan: head.length }, "no runs yet: windtunnel train charlm")));
  };
  follow(() => "/api/events", told, signal);
}

function runRow(run, label) {
  const box = el("input", { type: "checkbox", checked: chosen.has(run.name), "aria-label": `overlay ${run.name}` });
  box.onchange = () => {
    chosen[box.checked ? "add" : "delete"](run.name);
    label();
  };
  const curve = el("canvas", { class: "spark" });
  if (run.spark.length > 1) spark(curve, run.spark);
  const gates = Object.entries(run.gates ?? {}).filter(([, held]) => !held).map(([name]) => name);
  const silent = finite(run.silent) ? `nothing has moved for ${duration(run.silent)}` : null;
  const note = run.problem ?? silent ?? (gates.length ? `gate failed: ${gates.join(", ")}` : run.reason);
  const cell = (text, name) => el("td", { class: "n", "data-label": name }, text === "–" ? "" : text);
  return el("tr", {},
    el("td", {}, box),
    el("td", { class: "name" }, el("a", { href: link(run.name) }, run.name), " ", el("button", { type: "button", class: "link", onclick: () => report(run.name) }, "report"), note ? el("small", { class: silent ? "warn" : "soft" }, note) : null),
    el("td", { class: "wide" }, pill(run.status, run.silent)),
    el("td", { class: "wide progress" }, finite(run.progress) ? el("progress", { max: 1, value: run.progress }) : "", finite(run.progress) ? ` ${percent(run.progress, 0)}` : ""),
    cell(finite(run.step) ? run.step.toLocaleString("en") : "–", "step"),
    cell(loss(run.loss), "loss"),
    el("td", { class: "wide" }, run.spark.length > 1 ? curve : ""),
    cell(loss(run.validation_loss), "validation"),
    cell(finite(run.spent_dollars) ? dollars(run.spent_dollars) : finite(run.spent_hours) ? duration(3600 * run.spent_hours) : "–", "spent"),
    cell(finite(run.planned_dollars) ? dollars(run.planned_dollars) : finite(run.planned_hours) ? duration(3600 * run.planned_hours) : "–", "planned"),
    el("td", { "data-label": "last step" }, run.last ? new Date(1000 * run.last).toLocaleString("sv").slice(0, 16) : ""));
}

// --- one run ---

async function showRun(name, signal) {
  document.title = `${name}: windtunnel`;
  main.replaceChildren(el("p", { class: "soft" }, `reading ${name} …`));
  let run;
  try {
    run = await (await get(`/api/runs/${encodeURIComponent(name)}`, signal)).json();
  } catch (error) {
    if (error instanceof Denied) return ask();
    if (!signal.aborted) main.replaceChildren(el("p", { class: "bad" }, error.message), el("a", { href: "#/" }, "all runs"));
    return;
  }
  const top = el("div");
  const axis = axisOf([run]);
  const bar = el("div", { class: "bar" }, el("a", { href: "#/" }, "all runs"), el("span", { class: "right" }, smoothing(0, (share) => run.drawn?.forEach((chart) => chart.smooth(share))),
    el("label", { class: "soft" }, "over ", axis),
    el("button", { type: "button", onclick: () => report(name) }, "report")));
  const rest = el("div", { class: "rest" });
  const charts = chartsOf(run, axis);
  main.replaceChildren(bar, top, ...charts, rest);
  const write = (now) => {
    top.replaceChildren(...momentOf({ ...run, ...now }), ...stagesOf({ ...run, ...now }));
    rest.replaceChildren(...gatesOf(now), ...samplesOf(now), el("section", { class: "card" }, el("h3", {}, "What happened"), el("ul", { class: "events" }, ...eventsOf(now.events))));
  };
  write(run);
  let last = Math.max(-1, ...run.charts.flatMap((chart) => Object.values(chart.series).map((points) => points.at(-1)?.[0] ?? -1)));
  const told = (news) => {
    if (news.last < last || Object.keys(news.series).some((key) => !run.charts.some((chart) => key in chart.series)) && news.last > last && !run.charts.length) {
      return route(); // the run went back, or has its first points
    }
    top.replaceChildren(...momentOf({ ...run, ...news.moment }), ...stagesOf(run));
    if (news.last > last) {
      add(run, news);
      run.draw();
      last = news.last;
    }
    if (seen(news.moment) !== run.seen) {
      run.seen = seen(news.moment);
      get(`/api/runs/${encodeURIComponent(name)}`, signal).then((r) => r.json()).then((fresh) => {
        for (const part of ["events", "gates", "expected", "stages", "samples"]) run[part] = fresh[part];
        write({ ...run, ...news.moment });
      }).catch(() => {});
    }
  };
  const seen = (moment) => JSON.stringify([moment.made, moment.alerts.length]);
  run.seen = seen(run);
  follow(() => `/api/runs/${encodeURIComponent(name)}/events?since=${last}`, told, signal);
}

// Append new points; what grows too long is halved.
function add(run, news) {
  for (const chart of run.charts) for (const name of Object.keys(chart.series)) {
    const points = chart.series[name].concat((news.series[name] ?? []).filter((p) => p[0] > (chart.series[name].at(-1)?.[0] ?? -1)));
    chart.series[name] = points.length > MOST_POINTS ? halved(points) : points;
  }
  const m = news.moment;
  const before = run.clock.at(-1) ?? [0, 0, 0, 0];
  if (news.last > before[0]) run.clock.push([news.last, finite(before[1]) && before[0] ? (before[1] / before[0]) * news.last : null, m.elapsed / 3600, m.dollars]);
}

function halved(points) {
  const found = [];
  for (let i = 0; i + 1 < points.length; i += 2) {
    const [a, b] = [points[i], points[i + 1]];
    const both = (k, f) => (finite(a[k]) && finite(b[k]) ? f(a[k], b[k]) : a[k] ?? b[k]);
    found.push([b[0], both(1, (x, y) => (x + y) / 2), both(2, Math.min), both(3, Math.max)]);
  }
  if (points.length % 2) found.push(points.at(-1));
  return found;
}

function momentOf(run) {
  const [status, ...reason] = run.phase.split(": ");
  const word = status === "training" || status === "starting" ? "running" : status;
  const [kind, , title] = standing(word, run.silent);
  const total = run.total_steps ? Math.max(run.total_steps, run.step) : null;
  const budget = finite(run.dollars_budget) ? `of ${dollars(run.dollars_budget)}` : "";
  const speed = run.charts.find((chart) => chart.series.tokens_per_second)?.limits.find((limit) => limit.kind === "plan")?.value;
  const memory = finite(run.memory_limit_gib) ? `of ${run.memory_limit_gib.toFixed(1)} GiB` : "";
  const figures = [
    ["step", total ? `${run.step.toLocaleString("en")} of ${total.toLocaleString("en")}` : run.step.toLocaleString("en")],
    ["elapsed", duration(run.elapsed)], ["left", duration(run.eta)],
    ["training loss", loss(run.loss)], ["validation loss", loss(run.validation)], ["bits per byte", loss(run.bpb)],
    ["answers right", percent(run.answers)],
    [`tokens a second${finite(speed) ? `, planned ${short(speed, 3)}` : ""}`, short(run.tokens_per_second, 3)], ["MFU", percent(run.mfu)],
    [`peak memory ${memory}`, finite(run.memory_gib) ? `${run.memory_gib.toFixed(2)} GiB` : "–"],
    [`spent ${budget}`, dollars(run.dollars)], ["forecast", dollars(run.dollars_forecast)],
    ["stopping now saves", finite(run.dollars_forecast) && word === "running" ? dollars(Math.max(0, run.dollars_forecast - run.dollars)) : "–"],
  ].filter(([, value]) => value !== "–");
  return [el("section", { class: `card verdict ${kind.split(" ")[0]}` },
    el("h2", {}, run.name),
    el("p", { class: "soft" }, [run.title.split("  /")[0], run.stage ? `stage ${run.stage}` : null].filter(Boolean).join(" · ")),
    el("div", {}, pill(word, run.silent), " ", title || (word === "running" ? run.phase : reason.join(": ")), " ",
      total ? el("progress", { max: total, value: run.step }) : null),
    el("div", { class: "figures" }, ...figures.map(([name, value]) => el("div", {}, el("b", {}, value), el("span", {}, name)))))];
}

function chartsOf(run, axis) {
  const drawn = run.charts.map((part) => {
    const chart = new Chart({ title: part.title, meaning: part.meaning, limits: part.limits });
    return { part, chart };
  });
  run.drawn = drawn.map(({ chart }) => chart);
  run.draw = () => drawn.forEach(({ part, chart }) => {
    chart.x = axis.value;
    chart.set(part.names.map((name) => ({ name: name.replaceAll("_", " "), points: over(part.series[name], run.clock, axis.value) })));
  });
  axis.onchange = () => {
    drawn.forEach(({ chart }) => chart.zoomTo(null));
    run.draw();
  };
  const grid = (more) => el("div", { class: "charts" }, ...drawn.filter(({ part }) => part.more === more).map(({ chart }) => chart.element));
  run.draw();
  const others = drawn.some(({ part }) => part.more) ? [el("details", {}, el("summary", {}, "All other metrics"), grid(true))] : [];
  return [grid(false), ...others];
}

function gatesOf(run) {
  if (!run.gates.length && !run.expected.length) return [];
  const text = (value) => (finite(value) ? short(value) : value === null || value === undefined ? "–" : String(value));
  const lines = run.gates.map((gate) => el("li", {}, el("b", { class: gate.held ? "good" : "bad" }, gate.held ? "✓ held " : "✗ failed "), gate.name,
    ` ${gate.measured ?? text(gate.value)} (limit ${text(gate.limit)})`, !gate.held && gate.advice ? el("small", {}, gate.advice) : null));
  const expected = run.expected.map(([name, range, value, met, source]) => el("li", {}, el("b", { class: met === "yes" ? "good" : met === "NO" ? "bad" : "soft" },
    met === "yes" ? "✓ met " : met === "NO" ? "✗ not met " : "open "), `${name}: expected ${range}, ${value === "not measured" ? "not measured yet" : `measured ${value}`}`, el("small", {}, source)));
  return [el("section", { class: "card" }, el("h3", {}, "Gates and expectations"), el("ul", { class: "events" }, ...lines, ...expected))];
}

// The stages of a job in their order, each with its run.
function stagesOf(run) {
  if (!run.stages?.length) return [];
  return [el("section", { class: "card" }, el("h3", {}, "Stages"), el("ol", { class: "stages" }, ...run.stages.map((stage) => el("li", {},
    stage.run && stage.run !== run.name ? el("a", { href: link(stage.run) }, stage.name) : el("b", {}, stage.name), " ",
    pill(stage.status ?? "not begun", stage.run === run.name ? run.silent : null)))))];
}

function samplesOf(run) {
  return (run.samples ?? []).map((part) => el("section", { class: "card samples" }, el("h3", {}, part.title), ...part.samples.map((one) => el("div", {},
    one.note ? el("small", { class: one.good ? "good" : "soft" }, one.note) : null,
    el("pre", {}, el("span", { class: "soft" }, one.prompt), one.prompt && one.text ? "\n" : "", one.text)))));
}

function eventsOf(events) {
  if (!events.length) return [el("li", { class: "soft" }, "nothing yet")];
  return [...events].reverse().map((event) => el("li", {},
    el("b", { class: { warn: "warn", bad: "bad" }[event.level] ?? "soft" }, `${event.level} `),
    el("span", { class: "soft" }, `${finite(event.step) ? `step ${event.step.toLocaleString("en")} · ` : ""}${new Date(1000 * event.time).toLocaleString("sv")} `),
    event.message.includes("\n") ? el("pre", {}, event.message) : event.message, event.advice ? el("small", {}, event.advice) : null));
}

async function report(name) {
  try {
    const { url } = await (await get(`/api/runs/${encodeURIComponent(name)}/ticket`)).json();
    if (!open(url, "_blank")) location.assign(url);
  } catch (error) {
    state(error.message, true);
  }
}

// --- several runs ---

async function showCompare(names, signal) {
  document.title = `${names.length} runs: windtunnel`;
  main.replaceChildren(el("p", { class: "soft" }, "reading …"));
  let runs;
  try {
    runs = await Promise.all(names.map(async (name) => (await get(`/api/runs/${encodeURIComponent(name)}`, signal)).json()));
  } catch (error) {
    if (error instanceof Denied) return ask();
    if (!signal.aborted) main.replaceChildren(el("p", { class: "bad" }, error.message), el("a", { href: "#/" }, "all runs"));
    return;
  }
  const axis = axisOf(runs);
  if ([...axis.options].some((o) => o.value === "tokens")) axis.value = "tokens";
  const charts = beside(runs).map((part) => ({ part, chart: new Chart(part) }));
  const draw = () => charts.forEach(({ part, chart }) => {
    chart.x = axis.value;
    chart.set(part.curves(axis.value));
  });
  axis.onchange = draw;
  main.replaceChildren(el("div", { class: "bar" }, el("a", { href: "#/" }, "all runs"), el("span", { class: "sums" }, `${runs.length} runs`),
    el("span", { class: "right" }, smoothing(0, (share) => charts.forEach(({ chart }) => chart.smooth(share))), el("label", { class: "soft" }, "over ", axis))),
    el("div", { class: "charts" }, ...charts.map(({ chart }) => chart.element)));
  draw();
  runs.forEach((run) => {
    let last = Math.max(-1, ...run.clock.map((c) => c[0]));
    if (run.phase === "training") follow(() => `/api/runs/${encodeURIComponent(run.name)}/events?since=${last}`, (news) => {
      if (news.last < last) return route();
      if (news.last > last) {
        add(run, news);
        last = news.last;
        draw();
      }
    }, signal);
  });
  state("live");
}

// --- which page ---

function ask() {
  stop?.abort();
  main.replaceChildren();
  $("auth").hidden = false;
  $("token").focus();
  state("a token is needed", true);
}

function route() {
  const secret = new URLSearchParams(location.hash.slice(1));
  if (secret.has("token")) {
    sessionStorage.setItem("windtunnel-token", secret.get("token"));
    const run = secret.get("run");
    history.replaceState(null, "", run ? link(run) : "#/"); // out of sight, and out of the history
  }
  stop?.abort();
  stop = new AbortController();
  $("auth").hidden = true;
  const [, kind, rest] = location.hash.match(/^#\/(run|compare)\/(.+)$/) ?? [];
  if (kind === "run") showRun(decodeURIComponent(rest), stop.signal);
  else if (kind === "compare") showCompare(rest.split(",").map(decodeURIComponent), stop.signal);
  else showRuns(stop.signal);
}

$("auth").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("windtunnel-token", $("token").value.trim());
  route();
});
addEventListener("hashchange", route);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", route);
route();
