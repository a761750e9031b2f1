import { $, api, choosing, contextFields, h, headFields, listed, number, onSubmit, percent, point, query, whole, word, wordOrId } from "./console.js";

let model, context, head, chosen = null, typed;

choosing(async (one) => {
  model = one;
  context = contextFields(model);
  head = headFields($("head-one"), model, model.default_head, "Head");
  chosen = null;
  $("reasons").replaceChildren();
  close();
});

// ---- The list of words that match: ARIA's combobox

const list = $("words"), input = $("word");

function close() {
  list.hidden = true;
  list.replaceChildren();
  input.setAttribute("aria-expanded", "false");
  input.removeAttribute("aria-activedescendant");
}

function take(found) {
  chosen = { text: found.word ?? String(found.id), id: found.id };
  input.value = chosen.text.slice(0, 200);
  chosen.text = input.value; // as the field holds it
  close();
}

function activate(option) {
  for (const each of list.children) each.setAttribute("aria-selected", each === option);
  input.setAttribute("aria-activedescendant", option.id);
  option.scrollIntoView({ block: "nearest" });
}

input.addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(async () => {
    const text = input.value;
    if (!text || !model) return close();
    const { words } = await api(`words?${query({ model: model.model, text })}`).catch(() => ({ words: [] }));
    if (text !== input.value) return;
    list.replaceChildren(...words.map((found, place) =>
      h("li", { role: "option", id: `word-${place}`, "aria-selected": "false", mousedown: (event) => { event.preventDefault(); take(found); } },
        word(found), h("span", { class: "hint" }, `#${found.id}`))));
    list.found = words;
    list.hidden = !words.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
  }, 120);
});

input.addEventListener("keydown", (event) => {
  if (list.hidden) return;
  const options = [...list.children];
  const at = options.findIndex((option) => option.getAttribute("aria-selected") === "true");
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    const step = event.key === "ArrowDown" ? 1 : -1;
    activate(options[(at + step + options.length) % options.length]);
  } else if (event.key === "Enter" && at >= 0) {
    event.preventDefault();
    take(list.found[at]);
  } else if (event.key === "Escape") close();
});
input.addEventListener("blur", () => setTimeout(close, 150));

// ---- The reasons

function asked() {
  if (chosen && chosen.text === input.value) return chosen.id;
  return wordOrId(input.value, model.has_words);
}

onSubmit($("question"), async () => {
  close();
  const facts = await api("why-not", {
    model: model.model, ...context(), word: asked(), k: $("k").valueAsNumber, ...head(),
    banned: listed($("banned").value, model.has_words), allowed: listed($("allowed").value, model.has_words),
  });
  $("reasons").replaceChildren(...reasons(facts));
});

function reasons(facts) {
  const shown = word(facts);
  const dropped = facts.stages.find(({ passed }) => !passed);
  const verdict = facts.answered
    ? h("p", { class: "notice" }, shown, ` is among the ${facts.k} best that ${point(facts.head, facts.knobs)} answers.`)
    : h("p", { class: "notice problem" }, shown, ` is not answered: ${WHY[dropped.stage](dropped, facts)}`);
  const fallback = facts.fallback ? h("p", { class: "hint" }, "The head left this context to its fallback, which proves its answers.") : null;
  return [
    verdict, fallback,
    h("div", { class: "figures" }, [
      [number(facts.logit, 6), "its exact logit"],
      [`${whole(facts.rank)} of ${whole(facts.vocab_size)}`, "its rank among all words"],
      [number(facts.best.logit - facts.logit, 5), "below the best logit"],
      [facts.lists ? `${whole(facts.lists.count)} of ${whole(facts.lists.clusters)}` : "-", "lists of the screen that hold it"],
      [facts.frequency ? `${whole(facts.frequency.place)} of ${whole(facts.frequency.of)}` : "-", "its place by how often it was among the best in fitting"],
    ].map(([value, label]) => h("div", { class: "figure" }, h("b", {}, value), h("span", {}, label)))),
    h("h2", {}, "Stage by stage"),
    h("ol", { class: "stages" }, facts.stages.map((stage, place) => {
      const after = dropped && place > facts.stages.indexOf(dropped);
      const state = stage.passed ? "passed" : after ? "not reached" : "dropped here";
      return h("li", { class: stage.passed ? "passed" : after ? null : "dropped" }, h("b", {}, `${TITLE[stage.stage]}: ${state}`), DETAIL[stage.stage](stage, facts));
    })),
    facts.lists?.count ? h("p", { class: "hint" }, `Lists that hold it: ${facts.lists.first.join(", ")}${facts.lists.count > facts.lists.first.length ? ", ..." : ""}`) : null,
  ].filter(Boolean);
}

const TITLE = { constraint: "Constraints", list: "Cluster list", coarse: "Coarse code", fine: "Fine code", exact: "Exact logit", best: "Among the best" };

const WHY = {
  constraint: (stage) => (stage.constraint === "banned" ? "you banned it." : "it is not among the words that you allow."),
  list: (_, facts) => (facts.lists.count ? "the lists that this context is routed to do not hold it." : "no list of the screen holds it, so the screen alone can never answer it."),
  coarse: () => "a bound of its logit, by its coarse code, is below the words that are answered. That is a proof.",
  fine: () => "a bound of its logit, by its fine code, is below the words that are answered. That is a proof.",
  exact: () => "the head does not look at it for this context.",
  best: (_, facts) => (facts.exact ? `its rank is ${whole(facts.rank)}, beyond the ${facts.k} best.` : `other words that the head looks at have larger logits.`),
};

const DETAIL = {
  constraint: (stage) => ({ banned: "It is banned.", allowed: "It is not among the allowed words." })[stage.constraint] ?? "Nothing forbids it.",
  list: (stage) => {
    const way = stage.escalated ? "This context is far from every cluster: the fallback answers, and no list is looked at. "
      : `This context is routed to ${stage.clusters.length === 1 ? "cluster" : "clusters"} ${stage.clusters.join(", ")}. `;
    const held = stage.listed_in.length ? `The list of ${stage.listed_in.join(", ")} holds the word. ` : "No list there holds the word. ";
    return `${way}${stage.escalated ? "" : held}The best cluster is ahead of the next by ${percent(stage.margin, 1)} of its score${stage.near ? ": close to the border" : ""}.`;
  },
  coarse: (stage) => `Its logit is at most ${number(stage.bound, 6)}; ${number(stage.needed, 6)} is needed.`,
  fine: (stage) => `Its logit is at most ${number(stage.bound, 6)}; ${number(stage.needed, 6)} is needed.`,
  exact: (stage) => (stage.passed ? `The head computed its logit: ${number(stage.logit, 6)}.` : `The head did not compute its logit, which is ${number(stage.logit, 6)}.`),
  best: (stage) => `The last of the ${stage.k} that are answered has ${number(stage.least, 6)}.`,
};
