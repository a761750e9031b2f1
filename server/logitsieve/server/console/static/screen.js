import { $, api, choosing, figures, h, kept, number, onSubmit, percent, plot, query, whole, word } from "./console.js";

let model, facts;

choosing(async (chosen) => {
  model = chosen;
  $("screen").hidden = !model.has_screen;
  $("list").replaceChildren();
  $("screen-empty").replaceChildren(...(model.has_screen ? [] : [h("p", { class: "notice" }, "This index has no screen: it was built without that head.")]));
  if (!model.has_screen) return;
  facts = await api(`screen?${query({ model: model.model })}`);
  const contexts = facts.contexts;
  const pairs = [
    [whole(facts.clusters), "clusters"],
    [whole(facts.mean), `words in a list on average (${percent(facts.mean / facts.vocab_size)} of all)`],
    [whole(facts.longest), "words in the longest"],
    [percent(facts.listed / facts.vocab_size, 1), "of all words are in some list"],
  ];
  if (contexts) {
    pairs.push(
      [percent(contexts.best_listed), "of the contexts: their best word is in their list"],
      [percent(contexts.labels_listed), `of their ${contexts.labels} best words are`],
      [percent(contexts.near, 1), `are near a border (within ${percent(contexts.near_margin, 0)} of the score)`],
      [percent(contexts.escalated, 1), "are left to the fallback"],
      [`${whole(contexts.met)} of ${whole(facts.clusters)}`, `clusters are met by the ${whole(contexts.rows)} contexts`],
    );
  } else pairs.push(["-", "the index keeps no contexts to measure coverage on"]);
  $("screen-figures").replaceChildren(...figures(pairs));
  $("margins-figure").hidden = $("blocks-figure").hidden = !contexts;
  $("uneven").hidden = !contexts?.uneven;
  draw(contexts);
  $("cluster").max = facts.clusters - 1;
  $("cluster").value = contexts?.by_cluster[0]?.cluster ?? facts.largest[0].cluster;
  const held = (contexts?.by_cluster ?? facts.largest).filter((one) => kept?.[listPath(one.cluster, 0)]).map((one) => one.cluster);
  $("clusters-hint").textContent = kept ? `this file holds those of ${held.join(", ")}` : `0 to ${facts.clusters - 1}`;
  await show(0);
  $("cascade-figure").hidden = $("scanned-figure").hidden = !contexts;
  if (contexts) drawCascade(await api(`cascade?${query({ model: model.model })}`));
});

function draw(contexts) {
  const places = facts.sizes.map((_, place) => place + 1);
  const options = (label, across) => ({
    legend: { show: false }, scales: { x: { time: false } }, axes: [{ label: across, labelSize: 20 }, { label, labelSize: 20, size: 60 }],
    series: [{}, { fill: "#5c6bc033" }],
  });
  plot($("sizes"), options("words", "lists"), [places, facts.sizes]);
  if (!contexts) return;
  const margins = contexts.margins.map((margin) => 100 * margin);
  $("uneven").textContent = `The share of best words in their lists varies: the worst block has ${percent(contexts.worst)} of ${percent(contexts.labels_listed)} on average. The contexts that the screen was fitted on may come from a part of the text only; spread them over all of it.`;
  plot($("blocks"), options("%", "blocks of contexts"), [contexts.blocks.map((_, place) => place + 1), contexts.blocks.map((share) => 100 * share)]);
  plot($("margins"), options("% of the score", "contexts, the nearest first"), [margins.map((_, place) => place + 1), margins]);
}

/** Precision, as more of the contexts are left to the screen. */
function drawCascade(cascade) {
  const k = Object.keys(cascade.precision).at(-1);
  const at = cascade.coverage.reduce((best, one, place) => (Math.abs(one - cascade.stored) < Math.abs(cascade.coverage[best] - cascade.stored) ? place : best), 0);
  $("cascade-said").textContent = `Misses of 1,000 answers of P@${k}, by the share of contexts that the screen answers itself, the nearest to their centroids first; dashed: of those answers alone. Stored: escalate = ${number(cascade.escalate)}, a share of ${percent(cascade.stored, 1)}, P@${k} ${cascade.precision[k][at].toFixed(4)} over all, ${whole(cascade.scanned[at])} rows of W a context`;
  const shares = cascade.coverage.map((share) => 100 * share);
  const misses = (precision) => precision.map((p) => 1000 * (1 - p));
  const options = (label, series, more) => ({
    scales: { x: { time: false } }, axes: [{ label: "% of contexts", labelSize: 20 }, { label, labelSize: 20, size: 60 }],
    series: [{ label: "%" }, ...series], ...more,
  });
  plot($("cascade"), options("misses of 1,000", [{ label: `P@${k}` }, { label: "of its own", dash: [6, 4] }]),
    [shares, misses(cascade.precision[k]), misses(cascade.own[k])]);
  plot($("scanned"), options("rows of W", [{ fill: "#5c6bc033" }], { legend: { show: false } }), [shares, cascade.scanned]);
}

const listPath = (number, start) => `cluster?${query({ model: model.model, number, start })}`;

async function show(start) {
  const list = await api(listPath($("cluster").valueAsNumber, start));
  const met = facts.contexts?.by_cluster.find(({ cluster }) => cluster === list.cluster)?.contexts;
  const end = list.start + list.words.length;
  const page = (label, to) => h("button", { type: "button", class: "quiet", click: () => show(to) }, label);
  $("list").replaceChildren(h("div", { class: "panel" },
    h("p", { class: "facts" }, `Cluster ${list.cluster}: ${whole(list.size)} words${met ? `, the best for ${whole(met)} of the contexts` : ""}. Those in few other lists come first; words ${whole(list.start + 1)} to ${whole(end)}.`),
    h("ul", { class: "words" }, list.words.map((one) => h("li", { title: `in ${one.lists} lists, id ${one.id}` }, word(one)))),
    h("p", {}, list.start ? page("Before", Math.max(0, list.start - 200)) : null, end < list.size && !kept ? page("More", end) : null)));
}

onSubmit($("choose"), () => show(0));
