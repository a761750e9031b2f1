import { $, api, choosing, figures, h, onSubmit, percent, plot, query, whole, word } from "./console.js";

let model, facts;

choosing(async (chosen) => {
  model = chosen;
  $("screen").hidden = !model.has_screen;
  $("list").replaceChildren();
  $("empty").replaceChildren(...(model.has_screen ? [] : [h("p", { class: "notice" }, "This index has no screen: it was built without that head.")]));
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
      [percent(contexts.best_listed), "of the kept contexts: their best word is in their list"],
      [percent(contexts.labels_listed), `of their ${contexts.labels} best words are`],
      [percent(contexts.near, 1), `are near a border (within ${percent(contexts.near_margin, 0)} of the score)`],
      [percent(contexts.escalated, 1), "are left to the fallback"],
      [`${whole(contexts.met)} of ${whole(facts.clusters)}`, `clusters are met by the ${whole(contexts.rows)} kept contexts`],
    );
  } else pairs.push(["-", "the index keeps no contexts to measure coverage on"]);
  $("figures").replaceChildren(...figures(pairs));
  $("margins-figure").hidden = !contexts;
  draw(contexts);
  $("cluster").max = facts.clusters - 1;
  $("cluster").value = contexts?.by_cluster[0]?.cluster ?? facts.largest[0].cluster;
  $("clusters-hint").textContent = `0 to ${facts.clusters - 1}`;
  await show(0);
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
  plot($("margins"), options("% of the score", "contexts, the nearest first"), [margins.map((_, place) => place + 1), margins]);
}

async function show(start) {
  const chosenCluster = $("cluster").valueAsNumber;
  const list = await api(`cluster?${query({ model: model.model, number: chosenCluster, start })}`);
  const met = facts.contexts?.by_cluster.find(({ cluster }) => cluster === list.cluster)?.contexts;
  const end = list.start + list.words.length;
  const page = (label, to) => h("button", { type: "button", class: "quiet", click: () => show(to) }, label);
  $("list").replaceChildren(h("div", { class: "panel" },
    h("p", { class: "facts" }, `Cluster ${list.cluster}: ${whole(list.size)} words${met ? `, the best for ${whole(met)} kept contexts` : ""}. Those in few other lists come first; words ${whole(list.start + 1)} to ${whole(end)}.`),
    h("ul", { class: "words" }, list.words.map((one) => h("li", { title: `in ${one.lists} lists, id ${one.id}` }, word(one)))),
    h("p", {}, list.start ? page("Before", Math.max(0, list.start - 200)) : null, end < list.size ? page("More", end) : null)));
}

onSubmit($("choose"), () => show(0));
