import { $, api, choosing, h, micros, number, percent, plot, point, problem, query, table, whole } from "./console.js";

let facts, model, timer, drawn, data, timed;
const MISSES = 10_000;

choosing(async (chosen) => {
  model = chosen;
  facts = await api(`points?${query({ model: model.model })}`);
  const measured = facts.points.length > 0;
  $("points").hidden = !measured;
  const machine = [facts.machine.cpu, facts.machine.threads && `${facts.machine.threads} ${facts.machine.threads === "1" ? "thread" : "threads"}`].filter(Boolean).join(", ");
  const target = Object.entries(facts.target).map(([k, p]) => `P@${k} ≥ ${percent(p)}`).join(", ");
  $("measured").textContent = measured
    ? `Measured on ${whole(facts.heldout_rows)} held-out contexts${machine ? `, ${machine}` : ""}. Built for ${target || "no target"}.` : "";
  $("points-empty").replaceChildren(...(measured ? [] : [h("p", { class: "notice" },
    "This index was not calibrated, so there is nothing to choose among: its default head answers. ",
    h("code", {}, "logitsieve tune"), " measures points on contexts of yours.")]),
    ...(facts.elsewhere ? [h("p", { class: "notice" }, `Times are those of another machine: ${facts.elsewhere}. logitsieve tune measures here.`)] : []),
    ...(facts.uneven.length ? [h("p", { class: "notice problem" }, `Precision of ${facts.uneven.join(", ")} varies between blocks of the held-out contexts: were the contexts of the build spread over the whole text?`)] : []));
  if (!measured) return;
  fill($("batch"), facts.batches, (rows) => `${rows} ${rows === 1 ? "row" : "rows"}`);
  fill($("at"), facts.ks, (k) => `P@${k}`);
  draw();
  await choose();
});

function fill(select, values, label) {
  const kept = select.value;
  select.replaceChildren(...values.map((value) => h("option", { value }, label(value))));
  if (values.map(String).includes(kept)) select.value = kept;
}

/** The precision of the slider, finer the nearer to 1; null at its start: the index's own target. */
function least() {
  const place = Number($("least").value);
  if (place === 0) return null;
  return place >= 400 ? 1 : 1 - 0.5 * 10 ** (-(place - 1) / 100);
}

async function choose() {
  const precision = least();
  $("asked").textContent = precision == null ? "the index's own target" : precision === 1 ? "100 %: a proof" : percent(precision, 3);
  $("least").setAttribute("aria-valuetext", $("asked").textContent);
  const k = Math.min(Number($("at").value), model.vocab_size);
  const asked = { model: model.model, k, ...(precision == null ? {} : { min_precision: precision }) };
  const { chosen } = await api(`chosen?${query(asked)}`);
  const one = chosen.find(({ rows }) => String(rows) === $("batch").value);
  $("chosen").replaceChildren("AUTO answers with ", h("b", {}, point(one.head, one.knobs)), one.us_per_row == null ? "" : `, ${micros(one.us_per_row)} a row`,
    one.max_error === 0 ? ", proven." : one.max_error < 1 ? `, wrong with a chance of at most ${one.max_error}.` : one.low == null ? "." : `, P@${k} at least ${percent(one.low, 3)} with 95 % confidence.`);
  mark(timed.find((two) => two.head === one.head && JSON.stringify(two.knobs) === JSON.stringify(one.knobs)));
}

function draw() {
  const [batch, k] = [$("batch").value, $("at").value];
  timed = facts.points.map((one, place) => ({ ...one, place, us: one.us_per_row[batch], low: one.proven ? 1 : one.low[k] }))
    .filter(({ us, low }) => us != null && low != null).sort((a, b) => a.us - b.us);
  const front = new Set(facts.frontier[batch][k]);
  const missed = (one) => MISSES * (1 - one.low);
  const onFront = (one) => front.has(one.place);
  data = [timed.map(({ us }) => us), timed.map((one) => (onFront(one) ? missed(one) : null)), timed.map((one) => (onFront(one) ? null : missed(one)))];
  const dots = { show: true, size: 8 };
  const names = [...timed].sort((a, b) => onFront(b) - onFront(a)).map((one) => [one.us, missed(one), point(one.head, one.knobs)]);
  drawn = plot($("plot"), {
    axes: [{ label: "µs a row", labelSize: 20, filter: (_, splits) => splits.map((us) => ("125".includes(us.toExponential()[0]) ? us : null)) }, { label: `misses of P@${k} in 10,000`, labelSize: 20, size: 60 }],
    scales: { x: { time: false, distr: 3 }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] } },
    hooks: { draw: [(canvas) => naming(canvas, names)] },
    series: [{ label: "µs a row" }, { label: "frontier", points: dots, spanGaps: true, paths: uPlot.paths.stepped({ align: 1 }) },
      { label: "others", colour: "soft", points: dots, paths: () => null },
      { label: "AUTO's choice", points: { show: true, size: 16, width: 2, fill: "transparent" }, paths: () => null }],
  }, [...data, timed.map(() => null)]);
  $("table").replaceChildren(table([
    ["Point", (one) => one.label],
    ["µs a row", (one) => number(one.us, 3), true],
    [`P@${k}`, (one) => (one.proven ? "100 % (proven)" : percent(one.mean[k], 3)), true],
    ["at least", (one) => percent(one.low, 3), true],
    ["Mass kept", (one) => (one.proven ? "" : percent(one.mass_kept)), true],
    ["Rows computed", (one) => whole(one.candidates[batch]), true],
    ["", (one) => (onFront(one) ? "frontier" : "")],
  ], timed, { caption: `${whole(timed.length)} points, the fastest first`, rowClass: (one) => (onFront(one) ? null : "quietly") }));
}

/** Rings the point that AUTO takes, and marks its row; undefined: it was not measured at this batch. */
function mark(taken) {
  drawn.setData([...data, timed.map((one) => (one === taken ? MISSES * (1 - one.low) : null))]);
  [...$("table").querySelectorAll("tbody tr")].forEach((row, place) => row.classList.toggle("marked", timed[place] === taken));
}

/** Writes the names of points beside them, earlier ones first, where they cover no other name. */
function naming(canvas, names) {
  const { ctx, bbox } = canvas;
  const em = 11 * devicePixelRatio;
  const written = [];
  ctx.save();
  ctx.font = `${em}px system-ui, sans-serif`;
  ctx.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--soft");
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  for (const [us, missed, name] of names) {
    const [x, y, width] = [canvas.valToPos(us, "x", true), canvas.valToPos(missed, "y", true), ctx.measureText(name).width];
    const beside = x + em + width < bbox.left + bbox.width ? x + em : x - em - width;
    const box = [beside, y - em, beside + width, y];
    if (beside < bbox.left || written.some(([left, top, right, bottom]) => box[0] < right && left < box[2] && box[1] < bottom && top < box[3])) continue;
    written.push(box);
    ctx.fillText(name, beside, Math.max(y - em / 2, bbox.top + em / 2));
  }
  ctx.restore();
}

for (const id of ["batch", "at"]) $(id).addEventListener("change", () => { draw(); choose().catch(problem); });
$("least").addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => choose().catch(problem), 60);
});
