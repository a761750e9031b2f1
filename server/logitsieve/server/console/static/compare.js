import { $, api, choosing, h, micros, onSubmit, percent, point, query, table, whole, word } from "./console.js";

let model;

choosing(async (chosen, all) => {
  model = chosen;
  const others = all.filter((other) => other.model !== model.model && other.dim === model.dim);
  const alone = !others.length;
  $("question").hidden = alone;
  $("result").replaceChildren(...(alone ? [h("p", { class: "notice" },
    "There is no other version of this hidden size to compare with. A server shows all versions of its folder; ",
    h("code", {}, "logitsieve console models/lm/1 models/lm/2"), " shows two.")] : []));
  $("other").replaceChildren(...others.map((other) => h("option", { value: other.model }, other.model)));
  heads(all);
  $("other").onchange = () => heads(all);
});

function heads(all) {
  const other = all.find(({ model: label }) => label === $("other").value);
  const names = new Set(other?.heads.map(({ name }) => name));
  const shared = model.heads.filter(({ name }) => names.has(name)).map(({ name }) => name);
  $("head").replaceChildren(h("option", { value: "" }, "AUTO of each"), ...shared.map((name) => h("option", { value: name }, name)));
}

onSubmit($("question"), async () => {
  const asked = { model: model.model, other: $("other").value, k: $("k").value, head: $("head").value };
  const found = await api(`compare?${query(asked)}`);
  const side = (facts) => h("section", { class: "side" }, h("h2", {}, facts.model),
    h("p", { class: "facts" }, `${point(facts.head, facts.knobs)} · ${whole(facts.scanned)} of ${whole(facts.vocab_size)} rows computed · ${micros(facts.us_per_row)} a row · ${percent(facts.exact, 1)} of the answers proven`));
  $("result").replaceChildren(
    h("div", { class: "figures" }, [
      [percent(found.same_best), "the same best word"],
      [percent(found.shared), `of the ${found.k} best words are shared`],
      [`${whole(found.differing)} of ${whole(found.rows)}`, "contexts differ"],
    ].map(([value, label]) => h("div", { class: "figure" }, h("b", {}, value), h("span", {}, label)))),
    found.same_words ? "" : h("p", { class: "notice" }, "The vocabularies differ: an id is another word in each."),
    h("div", { class: "sides" }, side(found.one), side(found.other)),
    found.contexts.length ? differences(found) : h("p", { class: "notice" }, "They answer the same words for every context."));
});

function apart(one) {
  const shown = word(one);
  shown.classList.add("apart");
  return [shown, h("span", { class: "heard" }, " only here")];
}

function differences(found) {
  const words = (own, others) => {
    const ids = new Set(others.map(({ id }) => id));
    return h("ul", { class: "words" }, own.map((one) => h("li", { title: `logit ${one.logit}, id ${one.id}` }, ids.has(one.id) ? word(one) : apart(one))));
  };
  return h("section", { "aria-label": "Differences" }, h("h2", {}, "Where they differ"), table([
    ["Context", (row) => row.context, true],
    [found.one.model, (row) => words(row.one, row.other)],
    [found.other.model, (row) => words(row.other, row.one)],
  ], found.contexts, { caption: `The first ${found.contexts.length} of ${whole(found.differing)}; framed: words that only one of them answers` }));
}
