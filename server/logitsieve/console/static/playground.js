import { $, api, choosing, contextFields, h, headFields, listed, micros, number, onSubmit, percent, point, probability, query, table, whole, word } from "./console.js";

const SHOWN = 20; // words that were drawn
let model, context, heads;

choosing(async (chosen) => {
  model = chosen;
  context = contextFields(model);
  const names = model.heads.map(({ name }) => name);
  const second = ["sketch", "full"].find((name) => names.includes(name) && name !== model.auto[0]?.head);
  heads = [headFields($("head-one"), model, "", "First head"), headFields($("head-two"), model, second, "Second head")];
  for (const id of ["answers", "drawn"]) $(id).replaceChildren();
  if (model.contexts) await answer();
});

const question = () => ({ model: model.model, ...context(), banned: listed($("banned").value, model.has_words) });

async function answer() {
  const asked = heads.map((head) => api("top", { ...question(), k: $("k").valueAsNumber, ...head() }));
  const [one, other] = await Promise.all(asked);
  const ids = [one, other].map((facts) => new Set(facts.words.map(({ id }) => id)));
  const context = $("row").disabled ? { model: model.model, kept: $("kept").value, k: $("k").value } : null;
  $("answers").replaceChildren(h("p", { class: "notice" }, difference(one.words, other.words)),
    side(one, ids[1], "First head", context && { ...context, head: other.head }),
    side(other, ids[0], "Second head", context && { ...context, head: one.head }));
}

function difference(one, other) {
  const ids = new Set(other.map(({ id }) => id));
  const apart = one.filter(({ id }) => !ids.has(id)).length;
  if (apart) return `The heads differ in ${apart} of ${one.length} words, which are marked.`;
  const same = one.every(({ id }, place) => id === other[place].id);
  return `Both heads answer the same words${same ? " in the same order" : ", in another order"}.`;
}

function side(facts, others, title, elsewhere) {
  const proven = facts.proven
    ? h("span", { class: "good" }, facts.fallback ? "proven, by the fallback" : "proven")
    : h("span", { class: "warn" }, facts.max_error < 1 ? `wrong with a chance of at most ${facts.max_error}` : "not proven");
  const most = facts.words[0]?.high ?? 1;
  return h("section", { class: "side", "aria-label": title },
    h("h2", {}, point(facts.head, facts.knobs)),
    h("p", { class: "facts" }, proven, ` · ${whole(facts.scanned)} of ${whole(facts.vocab_size)} rows computed (${percent(facts.scanned / facts.vocab_size)}) · ${micros(facts.us)}`),
    table([
      ["", (_, place) => place + 1, true],
      ["Word", (row) => [word(row), others.has(row.id) || !elsewhere ? "" : whyNot(row, elsewhere)]],
      ["Logit", (row) => row.logit.toFixed(4), true],
      ["Probability", (row) => interval(row), true],
      ["", (row) => bar(row.probability / most)],
    ], facts.words, {
      caption: `log Z is between ${number(facts.log_z_low, 7)} and ${number(facts.log_z_high, 7)} (${facts.normalizer})`,
      rowClass: (row) => (others.has(row.id) ? null : "only"),
    }));
}

/** Leads to the reason why the other head does not answer a word. */
function whyNot({ id }, elsewhere) {
  return h("a", { href: `/why-not?${query({ ...elsewhere, word: `#${id}` })}`, class: "aside" }, `why not by ${elsewhere.head}?`);
}

function interval(row) {
  const [low, high] = [probability(row.low), probability(row.high)];
  const title = `between ${row.low} and ${row.high}`;
  return h("span", { title }, low === high ? low : `${low} … ${high}`);
}

function bar(share) {
  const filled = h("i");
  filled.style.width = `${Math.min(100, 100 * share).toFixed(1)}%`;
  return h("div", { class: "range", "aria-hidden": "true" }, filled);
}

onSubmit($("question"), $("answers"), answer);
onSubmit($("drawing"), $("drawn"), async () => {
  const drawn = await api("draws", {
    ...question(), ...heads[0](), samples: $("samples").valueAsNumber, seed: $("seed").valueAsNumber,
    temperature: $("temperature").valueAsNumber, top_p: $("top-p").valueAsNumber, top_k: $("top-k").valueAsNumber,
  });
  const proven = drawn.proven ? "proven to follow the full softmax" : "not proven to follow the full softmax";
  $("drawn").replaceChildren(h("div", { class: "panel" },
    h("p", { class: "facts" }, `${whole(drawn.samples)} draws by ${point(drawn.head, drawn.knobs)}, ${proven}; ${whole(drawn.scanned)} rows computed, ${micros(drawn.us)}`),
    table([
      ["Word", (row) => word(row)],
      ["Drawn", (row) => row.count, true],
      ["Share", (row) => percent(row.count / drawn.samples, 1), true],
      ["Probability", (row) => probability(row.probability), true],
      ["", (row) => bar(row.count / drawn.words[0].count)],
    ], drawn.words.slice(0, SHOWN)),
    drawn.words.length > SHOWN ? h("p", { class: "hint" }, `and ${whole(drawn.words.length - SHOWN)} words more, drawn ${drawn.words[SHOWN].count === 1 ? "once each" : `${drawn.words[SHOWN].count} times or less`}`) : null));
});
