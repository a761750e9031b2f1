import { $, api, bytes, figures, h, micros, number, percent, plot, point, problem, query, table, whole } from "./console.js";

const EVERY_MS = 2000;
const KEPT = 60;
const history = []; // {at, calls, seconds}
let plots;

const total = (entries) => entries.reduce((sum, entry) => sum + entry.count, 0);

/** The duration in seconds that a share of the calls between two scrapes did not exceed. */
function quantile(before, after, share) {
  const counts = after.map(([, count], place) => count - (before[place]?.[1] ?? 0));
  const calls = counts.at(-1) ?? 0;
  if (!calls) return null;
  const place = counts.findIndex((count) => count >= share * calls);
  const [low, high] = [after[place - 1]?.[0] ?? 0, after[place][0]];
  if (high == null) return low;
  const [under, upTo] = [counts[place - 1] ?? 0, counts[place]];
  return low + ((high - low) * (share * calls - under)) / Math.max(upTo - under, 1e-9);
}

function showLive(live) {
  const now = { at: Date.now() / 1000, calls: total(live.calls), rows: total(live.rows), seconds: live.seconds };
  history.push(now);
  if (history.length > KEPT) history.shift();
  const rates = history.map((one, place) => {
    const before = history[place - 1];
    if (!before) return [one.at, null, null, null, null];
    const apart = one.at - before.at;
    const [p50, p99] = [0.5, 0.99].map((share) => quantile(before.seconds, one.seconds, share));
    return [one.at, (one.calls - before.calls) / apart, (one.rows - before.rows) / apart, p50, p99];
  });
  const [, calls, rows, , p99] = rates.at(-1);
  $("idle").hidden = $("idle").childElementCount === 0 || now.calls > 0;
  $("figures").hidden = now.calls === 0;
  const failed = total(live.calls.filter(({ code }) => code !== "OK"));
  $("figures").replaceChildren(...figures([
    [number(calls ?? 0, 3), "calls a second"],
    [number(rows ?? 0, 3), "rows a second"],
    [whole(live.queue_rows), "rows waiting"],
    [p99 == null ? "-" : micros(p99 * 1e6), "p99 of the last two seconds"],
    [whole(now.calls), "calls since the start"],
    [whole(failed), "of them failed"],
    [whole(total(live.rejected)), "refused before computing"],
    ...live.memory.map(({ device, used }) => [bytes(used), `used on ${device}`]),
  ]));
  $("plots").hidden = !now.calls;
  if (now.calls) drawRates(rates);
  $("precision").replaceChildren(precision(live.precision));
}

function drawRates(rates) {
  const column = (place, factor = 1) => rates.map((rate) => (rate[place] == null ? null : rate[place] * factor));
  const times = column(0);
  const data = [[times, column(1)], [times, column(3, 1e3), column(4, 1e3)]];
  if (!plots) {
    const clock = (_, times) => times.map((time) => new Date(1000 * time).toLocaleTimeString("en", { hour12: false }));
    const axes = [{ values: clock, space: 80 }, { size: 60 }];
    const scales = { y: { range: (_, low, high) => [0, 1.1 * (high || 1)] } };
    plots = [
      plot($("rate"), { axes, scales, legend: { show: false }, series: [{}, { label: "calls/s" }] }, data[0]),
      plot($("latency"), { axes, scales, series: [{ label: "at", value: (_, time) => clock(_, time == null ? [] : [time])[0] ?? "-" }, { label: "p50", value: ms }, { label: "p99", value: ms }] }, data[1]),
    ];
  } else plots.forEach((drawn, place) => drawn.setData(data[place]));
}

const ms = (_, value) => (value == null ? "-" : `${number(value, 3)} ms`);

function precision(entries) {
  const judged = entries.filter(({ possible }) => possible > 0);
  if (!judged.length) {
    return h("p", { class: "hint" }, "No answer has been checked yet. The server computes a share of the rows of TopK again by the head full (--shadow-share).");
  }
  return table([
    ["Model", (row) => row.model],
    ["Head", (row) => row.head],
    ["k", (row) => row.k, true],
    ["Live P@k", (row) => percent(row.hits / row.possible, 3), true],
    ["Between", (row) => `${percent(row.low)} and ${percent(row.high)}`, true],
    ["Target", (row) => percent(target(row), 3), true],
    ["", verdict],
    ["Judged ids", (row) => whole(row.possible), true],
  ], judged, { caption: "By rows that the head full answered again; between the 95 % bounds" });
}

const PROVING = ["full", "sketch"]; // heads that promise more than a target's precision
const target = ({ model, head, k }) => (PROVING.includes(head) ? null : targets[model]?.[k]);

function verdict(row) {
  const asked = target(row);
  if (asked == null) return "";
  if (row.low >= asked) return h("span", { class: "good" }, "met");
  return row.high < asked ? h("span", { class: "bad" }, "missed") : "too few yet";
}

/** The lines that call the first model, for a server that nobody has called yet. */
function firstCall({ models, port }) {
  const model = models.find(({ digest }) => digest);
  if (!model) return [];
  return [
    h("p", { class: "notice" }, "No call has arrived yet. Try this one, or ask in the ", h("a", { href: "/playground" }, "playground"), "."),
    h("pre", { tabindex: "0" }, [
      "import numpy as np", "from logitsieve.client import DecoderClient", "",
      `decoder = DecoderClient("${location.hostname}:${port}")`,
      `print(decoder.topk(np.ones((1, ${model.dim})), k=5, model="${model.name}"))`,
    ].join("\n")),
  ];
}

let targets = {};
let shown = "";

function showModels(models) {
  targets = Object.fromEntries(models.filter(({ plain }) => plain).map((model) => [model.name, model.target ?? {}]));
  const text = JSON.stringify(models);
  if (text === shown) return; // so that focus and selections stay
  shown = text;
  const cards = models.length ? models.map(card) : [h("p", { class: "notice" }, "No model is loaded yet.")];
  $("models").replaceChildren(...cards);
}

function card(model) {
  const state = { available: "good", failed: "bad" }[model.state] ?? "warn";
  const rows = [["Aliases", model.aliases.join(", ") || "none"]];
  if (model.error) rows.push(["Error", model.error]);
  if (model.digest) {
    const target = Object.entries(model.target).map(([k, p]) => `P@${k} ≥ ${percent(p)}`).join(", ");
    rows.push(
      ["Words", `${whole(model.vocab_size)}${model.has_words ? "" : ", as ids: the index has no vocabulary"}`],
      ["Hidden size", whole(model.dim)],
      ["Matrix", model.dtype],
      ["Files", files(model)],
      ["Device", model.device],
      ["Heads", model.heads.map(({ name }) => name).join(", ")],
      ["Built for", target || "no target"],
      ["AUTO", auto(model.auto)],
      ["Drift guard", model.auto_disabled_points ? h("span", { class: "warn" }, `${model.auto_disabled_points} points left for proven ones`) : "at rest"],
      ["Contexts kept", whole(model.contexts)],
      ["Digest", h("code", {}, model.digest.slice(0, 16))],
    );
  }
  const links = model.digest
    ? h("p", {}, h("a", { href: `/playground?${query({ model: model.model })}` }, "Playground"), " · ",
        h("a", { href: `/why-not?${query({ model: model.model })}` }, "Why not this word?"), " · ",
        h("a", { href: `/points?${query({ model: model.model })}` }, "Operating points"))
    : null;
  return h("article", { class: "card" },
    h("h3", {}, model.model, h("span", { class: `state ${state}` }, model.state)),
    h("dl", {}, rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])), links);
}

/** A version that is on disk and not loaded, with the command that loads it. */
function unloaded(model) {
  return h("p", { class: "hint" }, `${model} is on disk, not loaded: `, h("code", {}, `logitsieve admin load ${model}`));
}

/** Bytes of all files, and on demand of each, beside those of W in float32. */
function files(model) {
  const matrix = 4 * model.vocab_size * model.dim;
  return h("details", {}, h("summary", {}, bytes(model.files.reduce((sum, file) => sum + file.bytes, 0))), table([
    ["File", (row) => h("span", { class: "name" }, row.file)],
    ["Size", (row) => bytes(row.bytes), true],
    ["of W in float32", (row) => percent(row.bytes / matrix, 1), true],
  ], model.files, { caption: "Files of the index" }));
}

/** The points that AUTO takes, each with the rows a call at which it does. */
function auto(taken) {
  const rows = new Map();
  for (const one of taken) {
    const name = point(one.head, one.knobs);
    rows.set(name, [...(rows.get(name) ?? []), one.rows]);
  }
  return h("span", {}, [...rows].map(([name, calls], place) =>
    h("span", {}, place ? h("br") : null, rows.size > 1 ? `${name} at ${calls.join(", ")} rows a call` : name)));
}

async function refresh() {
  try {
    const overview = await api("overview");
    problem();
    $("state").textContent = overview.ready ? "ready" : "not ready";
    $("state").className = `state ${overview.ready ? "good" : "warn"}`;
    showModels(overview.models);
    $("unloaded").replaceChildren(...overview.unloaded.map(unloaded));
    if (!$("idle").childElementCount) $("idle").replaceChildren(...firstCall(overview));
    showLive(overview.live);
  } catch (error) {
    $("state").textContent = "no answer";
    $("state").className = "state bad";
    problem(error);
  }
  setTimeout(refresh, document.hidden ? 5 * EVERY_MS : EVERY_MS);
}

refresh();
