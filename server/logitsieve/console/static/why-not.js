import { $, api, choosing, contextFields, h, headFields, listed, number, onSubmit, point, whole, word, wordOrId } from "./console.js";

const asked = new URLSearchParams(location.search); // of a link from the playground
let model, context, head;

choosing(async (one) => {
  model = one;
  context = contextFields(model);
  head = headFields($("head-one"), model, asked.get("head") ?? model.default_head, "Head");
  $("reasons").replaceChildren();
  if (!asked.has("word")) return;
  for (const name of ["kept", "k", "word"]) $(name).value = asked.get(name) ?? $(name).value;
  asked.delete("word");
  $("question").requestSubmit();
});

onSubmit($("question"), $("reasons"), async () => {
  const facts = await api("why-not", {
    model: model.model, ...context(), word: wordOrId($("word").value, model.has_words), k: $("k").valueAsNumber, ...head(),
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
  const fallback = facts.fallback ? h("p", { class: "hint" }, "The head left this context to its fallback.") : null;
  return [
    verdict, fallback,
    h("div", { class: "figures" }, [
      [number(facts.logit, 6), "its exact logit"],
      [`${whole(facts.rank)} of ${whole(facts.vocab_size)}`, "its rank among all words"],
      [number(facts.best.logit - facts.logit, 5), "below the best logit"],
      [facts.lists ? `${whole(facts.lists.count)} of ${whole(facts.lists.clusters)}` : "-", "lists of the screen that hold it"],
    ].map(([value, label]) => h("div", { class: "figure" }, h("b", {}, value), h("span", {}, label)))),
    h("h2", {}, "Stage by stage"),
    h("ol", { class: "stages" }, facts.stages.map((stage, place) => {
      const after = dropped && place > facts.stages.indexOf(dropped);
      const state = stage.passed ? "passed" : after ? "not reached" : "dropped here";
      return h("li", { class: stage.passed ? "passed" : after ? null : "dropped" }, h("b", {}, `${TITLE[stage.stage]}: ${state}`), DETAIL[stage.stage](stage, facts));
    })),
  ].filter(Boolean);
}

const TITLE = { constraint: "Constraints", list: "Cluster list", bounds: "Bounds", logit: "Exact logit", best: "Among the best" };

const WHY = {
  constraint: (stage) => (stage.constraint === "banned" ? "you banned it." : "it is not among the words that you allow."),
  list: (_, facts) => (facts.lists.count ? "the lists that this context is routed to do not hold it." : "no list of the screen holds it, so the screen alone can never answer it."),
  bounds: (_, facts) => `an upper bound of its logit is below the words that are answered. ${facts.proven ? "That is a proof." : `Bounds fail with a chance of at most ${facts.max_error}.`}`,
  logit: () => "the head does not look at it for this context.",
  best: (_, facts) => (facts.proven ? `its rank is ${whole(facts.rank)}, beyond the ${facts.k} best.` : `other words that the head looks at have larger logits.`),
};

const DETAIL = {
  constraint: (stage) => ({ banned: "It is banned.", allowed: "It is not among the allowed words." })[stage.constraint] ?? "Nothing forbids it.",
  list: (stage) => (stage.escalated ? "This context is far from every cluster: the fallback answers, and no list is looked at."
    : stage.passed ? "The list of a cluster that this context is routed to holds it." : "No list that this context is routed to holds it."),
  bounds: (stage) => (stage.passed ? "Its bound does not rule it out" : "Its bound rules it out") + `; its logit is ${number(stage.logit, 6)}.`,
  logit: (stage) => (stage.passed ? `The head computed its logit: ${number(stage.logit, 6)}.` : `The head did not compute its logit, which is ${number(stage.logit, 6)}.`),
  best: (stage) => `The last of the ${stage.k} that are answered has ${number(stage.least, 6)}.`,
};
