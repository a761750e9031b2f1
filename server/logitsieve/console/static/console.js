// What all pages share: elements, requests, words, numbers, the model that is looked at, plots.

/** An element; attributes that are functions listen, true and false set or leave, null is left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

export const $ = (id) => document.getElementById(id);

export function problem(error) {
  const line = $("problem");
  line.hidden = !error;
  line.textContent = error ? error.message : "";
}

/** JSON of an endpoint; an Error with the server's reason, and the sign-in page without a key. */
export async function api(path, question) {
  const options = question
    ? { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question) }
    : {};
  const response = await fetch(`/api/${path}`, options).catch(() => {
    throw new Error("The server does not answer. Is it still running?");
  });
  if (response.status === 401) location.assign("/sign-in");
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error?.message ?? `The server answered ${response.status}.`);
  return body;
}

export const query = (values) => new URLSearchParams(values).toString();

/** Runs work at a form's submit, its button disabled meanwhile; an error is shown below it, in place of the last result. */
export function onSubmit(form, result, work) {
  const button = form.querySelector("button[type=submit]");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    problem();
    try {
      await work();
      result.scrollIntoView({ block: "nearest" });
    } catch (error) {
      result.replaceChildren();
      form.after($("problem"));
      problem(error);
    }
    button.disabled = false;
  });
}

// ---- Words and numbers

const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}]/u;

/** A word as text: what has no shape of its own is written out, so that it does nothing. */
export function word({ id, word, cut }) {
  if (word == null) return h("span", { class: "word" }, `#${id}`);
  const parts = [];
  let text = "";
  for (const character of word) {
    if (!HIDDEN.test(character)) {
      text += character;
      continue;
    }
    const code = character.codePointAt(0).toString(16).padStart(4, "0");
    parts.push(text, h("span", { class: "escape" }, `\\u{${code}}`));
    text = "";
  }
  parts.push(text, cut ? h("span", { class: "escape" }, " ... (cut)") : "");
  return h("bdi", { class: "word" }, word === "" ? h("span", { class: "escape" }, "(empty)") : parts);
}

const GROUPED = new Intl.NumberFormat("en");
export const whole = (value) => (value == null ? "-" : GROUPED.format(Math.round(value)));

export function number(value, digits = 4) {
  if (value == null || !Number.isFinite(value)) return "-";
  if (Number.isInteger(value) || Math.abs(value) >= 10 ** digits) return whole(value);
  return Number(value.toPrecision(digits)).toString();
}

export const percent = (share, digits = 2) => (share == null ? "-" : `${(100 * share).toFixed(digits)} %`);

export function probability(p) {
  return p >= 0.001 ? p.toFixed(4) : p.toExponential(2);
}

export function micros(us) {
  if (us == null) return "-";
  return us >= 1000 ? `${number(us / 1000, 3)} ms` : `${number(us, 3)} µs`;
}

export function bytes(count) {
  let unit = 0;
  while (count >= 1024 && unit < 3) [count, unit] = [count / 1024, unit + 1];
  return `${unit ? count.toFixed(1) : count} ${["B", "KiB", "MiB", "GiB"][unit]}`;
}

export function point(head, knobs) {
  return [head, ...Object.entries(knobs).map(([name, value]) => `${name}=${number(value, 3)}`)].join(" ");
}

/** A table; columns are [title, cell of a row, is a number]. */
export function table(columns, rows, { caption, rowClass } = {}) {
  const cell = (tag, content, isNumber) => h(tag, { class: isNumber ? "number" : null, scope: tag === "th" ? "col" : null }, content);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": caption ?? "Table" },
    h(
      "table",
      {},
      caption ? h("caption", {}, caption) : null,
      h("thead", {}, h("tr", {}, columns.map(([title, , isNumber]) => cell(title ? "th" : "td", title, isNumber)))),
      h("tbody", {}, rows.map((row, place) =>
        h("tr", { class: rowClass?.(row, place) }, columns.map(([, of, isNumber]) => cell("td", of(row, place), isNumber))))),
    ),
  );
}

export function figures(pairs) {
  return pairs.map(([value, label]) => h("div", { class: "figure" }, h("b", {}, value), h("span", {}, label)));
}

// ---- The model that is looked at

/** Fills the choice of models and calls load(model) for the one in the address, and at a change. */
export async function choosing(load) {
  const select = $("model");
  let models;
  try {
    models = (await api("overview")).models;
  } catch (error) {
    return problem(error);
  }
  const loaded = models.filter((model) => model.state === "available");
  if (!loaded.length) {
    select.replaceChildren(h("option", {}, "none"));
    const why = models.length ? "No model is loaded: the overview says why." : "No model is loaded yet. Wait, and load this page again.";
    return problem(new Error(why));
  }
  select.replaceChildren(...loaded.map(({ model }) => h("option", { value: model }, model)));
  select.disabled = false;
  const asked = new URLSearchParams(location.search).get("model");
  if (loaded.some(({ model }) => model === asked)) select.value = asked;
  const show = async () => {
    problem();
    remember(select.value);
    try {
      await load(loaded.find(({ model }) => model === select.value));
    } catch (error) {
      problem(error);
    }
  };
  select.addEventListener("change", show);
  await show();
}

function remember(model) {
  const search = `?${query({ model })}`;
  history.replaceState(null, "", location.pathname + search);
  for (const link of document.querySelectorAll("nav a")) link.search = link.pathname === "/" ? "" : search;
}

/** The fields of a head and its knobs; returns a function that reads them. */
export function headFields(box, model, preferred, name) {
  const knobs = h("div", { class: "fields" });
  const heads = [{ name: "", knobs: [] }, ...model.heads];
  const select = h("select", { change: show, "aria-label": name }, heads.map((head) =>
    h("option", { value: head.name }, head.name || "AUTO")));
  select.value = heads.some((head) => head.name === preferred) ? preferred : "";
  function show() {
    const head = heads.find((one) => one.name === select.value);
    knobs.replaceChildren(...head.knobs.map((knob) =>
      h("label", { title: knob.help }, knob.name, h("input", {
        type: "number", name: knob.name, value: Number(knob.value.toPrecision(6)), min: knob.low, max: knob.high,
        step: knob.whole ? 1 : "any", required: true,
      }))));
  }
  show();
  box.replaceChildren(h("label", {}, "Head", select), knobs);
  return () => {
    const own = Object.fromEntries(heads.find((one) => one.name === select.value).knobs.map((knob) => [knob.name, knob.value]));
    const values = [...knobs.querySelectorAll("input")].map((input) =>
      [input.name, input.value === input.defaultValue ? own[input.name] : input.valueAsNumber]); // the box rounds
    return { head: select.value, knobs: Object.fromEntries(values) };
  };
}

/** The fields of a context; returns a function that reads them. */
export function contextFields(model) {
  const none = !model.contexts;
  const [kept, row] = document.querySelectorAll("[name=source]");
  const show = () => {
    for (const part of document.querySelectorAll("[data-source]")) {
      part.hidden = !document.querySelector(`[name=source][value=${part.dataset.source}]`).checked;
      for (const input of part.querySelectorAll("input, textarea")) input.disabled = part.hidden;
    }
  };
  kept.disabled = none;
  const usable = [$("row").value && row, kept, row];
  usable.find((input) => input && !input.disabled).checked = true;
  for (const input of [kept, row]) input.onchange = show;
  show();
  $("kept").max = Math.max(0, model.contexts - 1);
  $("kept").value = Math.min($("kept").value, $("kept").max);
  $("kept-count").textContent = none
    ? ", which keeps none: give a row, or tune the index to keep some"
    : `: 0 to ${whole(model.contexts - 1)}, of its held-out text`;
  $("row").placeholder = `${model.dim} numbers`;
  return () => {
    return kept.checked ? { kept: $("kept").valueAsNumber } : { row: numbers($("row").value) };
  };
}

function numbers(text) {
  return text.split(/[\s,;[\]]+/).filter(Boolean).map((part) => {
    const value = Number(part);
    if (!Number.isFinite(value)) throw new Error(`${part.slice(0, 40)} is not a finite number.`);
    return value;
  });
}

/** A word, or the id that #12 is, and 12 where there are no words. */
export function wordOrId(text, hasWords) {
  const id = /^(#?)(\d+)$/.exec(text);
  return id && (id[1] || !hasWords) ? Number(id[2]) : text;
}

/** Words and ids of a field. */
export const listed = (text, hasWords) => text.split(/\s+/).filter(Boolean).map((part) => wordOrId(part, hasWords));

// ---- Plots

/** A plot that fills its box; options are uPlot's, with colours of the page. */
export function plot(box, options, data) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const axes = (options.axes ?? [{}, {}]).map((axis) => ({
    stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") }, ...axis,
  }));
  const series = options.series.map((one, place) => {
    const stroke = colour(one.colour ?? (place < 2 ? "one" : "two"));
    return { stroke, width: 2, ...one, points: { fill: colour("panel"), stroke, ...one.points } };
  });
  const below = () => (options.legend?.show === false ? 0 : box.clientWidth < 420 ? 56 : 32);
  const room = () => ({ width: Math.max(200, box.clientWidth), height: Math.max(120, box.clientHeight - below()) });
  box.replaceChildren();
  const drawn = new uPlot({ ...options, axes, series, ...room() }, data, box);
  new ResizeObserver(() => drawn.setSize(room())).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload(), { once: true });
  return drawn;
}
