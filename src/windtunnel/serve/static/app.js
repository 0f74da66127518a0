// The completion page: prompt in, streamed text out. Everything a model writes is put in as text, never as HTML.

const $ = (id) => document.getElementById(id);
const history = $("history");
let model = null;
let running = null;

function headers() {
  const token = $("token").value.trim();
  return { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
}

function state(text, bad = false) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}

async function failure(response) {
  const body = await response.json().catch(() => null);
  const wait = response.headers.get("Retry-After");
  return (body?.error?.message ?? `the server answered ${response.status}`) + (wait ? ` (in about ${wait} s)` : "");
}

async function connect() {
  try {
    const health = await (await fetch("/health")).json();
    $("auth").hidden = !health.authentication;
    if (health.authentication && !$("token").value) {
      $("model").textContent = "";
      state("enter the token to begin");
      $("token").focus();
      return;
    }
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) throw new Error(await failure(response));
    model = (await response.json()).data[0];
    $("model").textContent = `${model.id} · context ${model.context_length.toLocaleString()} tokens`;
    $("max_tokens").max = model.max_tokens;
    state(health.status === "ok" ? "ready" : "the server is down", health.status !== "ok");
  } catch (error) {
    model = null;
    state(error.message, true);
  }
}

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function card(prompt) {
  $("empty")?.remove();
  const article = element("article", "live");
  const text = document.createElement("pre");
  const made = element("span", "made");
  text.append(element("span", "prompt", prompt), made);
  const foot = document.createElement("footer");
  const note = element("span", "note", "waiting …");
  foot.append(note);
  article.append(text, foot);
  history.append(article);
  history.scrollTop = history.scrollHeight;
  return { article, made, foot, note, prompt };
}

function finish(shown, note, bad = false) {
  shown.article.classList.remove("live");
  shown.note.textContent = note;
  shown.note.classList.toggle("error", bad);
  const again = element("button", "", "use prompt");
  const on = element("button", "", "continue");
  for (const button of [again, on]) button.type = "button";
  again.onclick = () => fill(shown.prompt);
  on.onclick = () => fill(shown.prompt + shown.made.textContent);
  shown.foot.append(again);
  if (shown.made.textContent) shown.foot.append(on);
}

function fill(text) {
  $("prompt").value = text;
  $("prompt").focus();
  $("prompt").setSelectionRange(text.length, text.length);
}

// Yields the data of server-sent events.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

function body() {
  const stop = $("stop").value.replaceAll("\\n", "\n");
  return {
    model: model.id,
    prompt: $("prompt").value,
    temperature: $("temperature").valueAsNumber,
    top_p: $("top_p").valueAsNumber,
    max_tokens: $("max_tokens").valueAsNumber,
    ...($("seed").value === "" ? {} : { seed: $("seed").valueAsNumber }),
    ...(stop ? { stop } : {}),
    stream: true,
    stream_options: { include_usage: true },
  };
}

async function stream(shown, signal) {
  const response = await fetch("/v1/completions", { method: "POST", headers: headers(), body: JSON.stringify(body()), signal });
  if (!response.ok) throw new Error(await failure(response));
  let first = null;
  let tokens = 0;
  let reason = "";
  for await (const data of events(response.body)) {
    if (data === "[DONE]") break;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    if (event.usage) tokens = event.usage.completion_tokens;
    for (const choice of event.choices) {
      first ??= performance.now();
      if (!event.usage && choice.text) tokens += 1;
      const below = history.scrollHeight - history.scrollTop - history.clientHeight < 40;
      shown.made.append(choice.text);
      reason = choice.finish_reason ?? reason;
      if (below) history.scrollTop = history.scrollHeight;
    }
    const seconds = first === null ? 0 : (performance.now() - first) / 1000;
    const rate = seconds > 0.05 ? ` · ${((tokens - 1) / seconds).toFixed(tokens / seconds < 10 ? 1 : 0)} tokens/s` : "";
    shown.note.textContent = `${tokens} ${tokens === 1 ? "token" : "tokens"}${rate}`;
  }
  return `${shown.note.textContent} · ${reason === "stop" ? "ended by itself or a stop text" : "reached max tokens or the context"}`;
}

async function complete() {
  if (running || !$("form").reportValidity()) return;
  if (!model) await connect();
  if (!model) return;
  running = new AbortController();
  $("go").disabled = true;
  $("halt").hidden = false;
  state("generating");
  const shown = card($("prompt").value);
  try {
    finish(shown, await stream(shown, running.signal));
    state("ready");
  } catch (error) {
    const stopped = error.name === "AbortError";
    finish(shown, stopped ? `${shown.note.textContent} · stopped` : error.message, !stopped);
    state(stopped ? "ready" : "the last request failed", !stopped);
  }
  running = null;
  $("go").disabled = false;
  $("halt").hidden = true;
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  complete();
});
$("halt").addEventListener("click", () => running?.abort());
$("token").addEventListener("change", connect);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    complete();
  } else if (event.key === "Escape") running?.abort();
});
connect();
