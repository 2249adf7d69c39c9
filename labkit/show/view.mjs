/* The views of the workbook: questions and their answers, tiles to fill in, and steps to play. An ES module in
 * anywidget's form, without dependencies: the same in JupyterLab, where a kernel answers, and on a page without one.
 * labkit/show/view.py makes its data, labkit/show/view.css its looks.
 *
 * State of a model: `kind`, `data`, `said` (page → kernel: what the reader did), `replied` (kernel → page: HTML), and
 * of steps `step`. `data.kernel` tells that a kernel answers; without one the module does, from the data.
 */

const locked = new Map(); // without a kernel: a question's name → what was locked in
const read = new Set(); // the names of answers that were opened before
const LOCKED = "labkit-locked";

/** Make an element; `html` is what is in it, in place of children. */
function make(tag, { html, ...attributes } = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  if (html !== undefined) node.innerHTML = html;
  node.append(...children);
  return node;
}

const press = (text, act, attributes = {}) => {
  const button = make("button", { type: "button", ...attributes }, text);
  button.addEventListener("click", act);
  return button;
};
const escaped = (text) => make("i", {}, text).innerHTML;
const letter = (i) => "abcdefghijklmnopqrstuvwxyz"[i];
const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const alert = (error) => `<span role="alert">${escaped(error.message)}</span>`;
const stripped = (digits) => (digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits);

/** Write a number as Python's `,.10g` does. */
export function written(number) {
  if (!Number.isFinite(number)) return String(number).replace("Infinity", "inf").replace("NaN", "nan");
  if (!number) return "0";
  const [digits, power] = number.toExponential(9).split("e");
  if (+power < -4 || +power >= 10) return `${stripped(digits)}e${power[0]}${power.slice(1).padStart(2, "0")}`;
  const [whole, part] = stripped(number.toFixed(9 - power)).split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? `.${part}` : "");
}

/** Round to two digits, a half to the even one, as Python's `.2g` does. */
function rounded(number) {
  const digits = number.toExponential(60);
  return Number(/^\d\.[02468]50*e/.test(digits) ? digits.replace(/50*e/, "e") : number.toPrecision(2));
}

/** Quote text as Python does. */
function quoted(text) {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  return mark + text.replaceAll("\\", "\\\\").replaceAll(mark, `\\${mark}`) + mark;
}

// -- questions --------------------------------------------------------------------------------------------------------

const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/;
const COMMAS = /^[-+]?[1-9]\d{0,2}(,\d{3})+(?!\d)[^,]*$/;

/** Read a number as `Prediction.choice` in labkit/grading/prediction.py does. */
export function choice({ unit, negative }, said) {
  const words = said.trim().replace(/\.$/, "").replaceAll("`", "").toLowerCase();
  const digits = (unit && words.endsWith(unit.toLowerCase()) ? words.slice(0, -unit.length) : words).trim();
  const plain = digits.replace(/[,_]/g, "");
  if (!NUMBER.test(plain)) {
    throw new Error(`${quoted(said)} is not a number. Write one such as 24 or 1.5e6${unit ? `, in ${unit}` : ""}.`);
  }
  if (digits.includes(",") && !COMMAS.test(digits)) {
    const point = digits.replaceAll(",", ".");
    const instead = NUMBER.test(point) ? `Write ${point} if you mean that` : "Leave out the commas";
    throw new Error(`${quoted(said)} has a comma, which parts thousands here, as in 1,170. ${instead}.`);
  }
  const number = Number(plain);
  if (number < 0 && !negative) {
    throw new Error(`${quoted(said)} is negative, and what is asked for is not. Write a number such as 24.`);
  }
  return number;
}

/** Reply to a wrong number: its trap's words, or by how much it is off, as `Prediction.reply` does; HTML. */
function off({ answer, traps, rounding, slips }, number) {
  const caught = traps.filter(([value]) => Math.abs(number - value) <= rounding * Math.abs(value));
  if (caught.length) return caught.sort(([a], [b]) => Math.abs(number - a) - Math.abs(number - b))[0][1];
  if (!number || !answer || number < 0 !== answer < 0) return "";
  const times = Math.max(number / answer, answer / number);
  const what = Math.abs(number) > Math.abs(answer) ? "large" : "small";
  const slip = slips.filter(([factor]) => Math.abs(times - factor) <= rounding * factor).map(([, hint]) => ` ${hint}`);
  return `<p>Your number is ${written(rounded(times))} times too ${what}.${slip.join("")}</p>\n`;
}

/** Hold what was locked in against the answer, as `Answer` in labkit/show/prediction.py does; HTML. */
export function answered(data, { choice, late }) {
  const { answer, within, options, unit, short, why, elsewhere } = data;
  const right = options ? choice === answer : Math.abs(choice - answer) <= within * Math.abs(answer) * (1 + 1e-9);
  const words = options ? options[choice][0] : escaped(`${written(choice)} ${unit}`.trim().replace(/\.$/, ""));
  const chose = late ? `You chose ${words} when the answer was already there to read` : `You predicted ${words}`;
  const close = choice === answer ? "That is right." : `That is close enough: the answer is ${short}.`;
  const said = right ? `✓ ${chose}. ${close}` : `✗ ${chose}, but the answer is ${short}.`;
  const reply = right ? "" : options ? options[choice][1] : off(data, choice);
  return `<p><b>${said}</b></p>${reply}${why}${elsewhere}`;
}

/** Lock an answer in where no kernel is told of it. */
function keep(name, chosen) {
  locked.set(name, chosen);
  document.dispatchEvent(new CustomEvent(LOCKED, { detail: { name } }));
}

function predict({ model, root, tell }) {
  const data = model.get("data");
  const kept = data.kernel ? data.locked : locked.get(data.name);
  const said = make("div", { role: "status" });
  const id = `labkit-${Math.random()}`; // radios of one name are one group, all over the page
  const chosen = () => radios.findIndex((radio) => radio.checked);
  const radios = (data.options ?? []).map(() => make("input", { type: "radio", name: id, disabled: !!kept }));
  const field = make("input", { type: "text", placeholder: "a number", "aria-label": "Your answer", disabled: !!kept });
  const lock = press("Lock it in", () => {
    if (data.kernel) return tell({ choice: data.options ? letter(chosen()) : field.value }, said);
    try {
      const given = data.options ? chosen() : choice(data, field.value);
      const words = data.options ? "" : `${written(given)} ${data.unit}`.trim();
      keep(data.name, { choice: given, words, late: read.has(data.name) });
    } catch (error) {
      said.innerHTML = alert(error);
    }
  });
  lock.disabled = !!data.options;
  for (const radio of radios) radio.addEventListener("change", () => (lock.disabled = false));
  const listed = radios.map((radio, i) =>
    make("label", {}, radio, make("span", { html: `<b>${letter(i)}.</b> ${data.options[i]}` })),
  );
  root.append(
    make("div", { html: data.question }),
    data.options
      ? make("div", { role: "radiogroup", "aria-label": data.label }, ...listed)
      : make("label", { class: "labkit-field" }, "Your answer ", field, kept ? "" : data.unit),
    ...(kept ? [] : [lock]),
    said,
  );
  if (!kept) return { say: () => (said.innerHTML = model.get("replied") ?? "") };
  if (data.options) radios[kept.choice].checked = true;
  else field.value = kept.words; // with its unit
  const words = data.options ? `${letter(kept.choice)}. ${data.options[kept.choice]}` : escaped(kept.words);
  said.innerHTML = `Locked in: <b>${words}</b>`;
}

function choose({ model, root, tell, draft }) {
  const data = model.get("data");
  const kept = (data.kernel ? data.locked : locked.get(data.name)?.choices) ?? data.parts.map(() => null);
  const said = make("div", { role: "status" });
  const lists = data.parts.map((part, k) => {
    const options = ["choose …", ...part.options].map((text, i) => make("option", { value: i - 1 }, text));
    const list = make("select", { "aria-label": part.label, disabled: kept[k] !== null }, ...options);
    list.value = kept[k] ?? draft[k] ?? -1; // what is chosen stays chosen where others are locked in
    list.addEventListener("change", () => (draft[k] = list.value));
    return list;
  });
  const lock = press("Lock in what is chosen", () => {
    const choices = lists.map((list, k) => (kept[k] === null && list.value !== "-1" ? Number(list.value) : null));
    if (choices.every((one) => one === null)) {
      said.textContent = "Nothing new is chosen. Choose an answer in one of the lists above first.";
    } else if (data.kernel) {
      tell({ choices: choices.map((one) => (one === null ? null : letter(one))) }, said);
    } else {
      keep(data.name, { choices: choices.map((one, k) => one ?? kept[k]) });
    }
  });
  const done = kept.filter((one) => one !== null).length;
  lock.disabled = done === kept.length;
  const items = data.parts.map((part, k) => make("li", {}, make("div", { html: part.question }), lists[k]));
  root.append(make("div", { html: data.question }), make("ol", {}, ...items), lock, said);
  const words = done ? `Locked in: <b>${done} of ${kept.length}</b> answers` : "";
  return { say: () => (said.innerHTML = model.get("replied") ?? words) };
}

/** Fold an answer away, and note that it was opened. */
function folded(name, title, html) {
  const details = make("details", {}, make("summary", {}, title), make("div", { html }));
  details.addEventListener("toggle", () => details.open && read.add(name));
  return details;
}

function answer({ model, root }) {
  const data = model.get("data");
  const kept = locked.get(data.name);
  const what = data.options ? "Choose an answer" : "Type a number";
  root.setAttribute("aria-live", "polite");
  if (kept) root.append(make("div", { html: answered(data, kept) }));
  else {
    const quiet = `${what} above and lock it in, then its answer appears here.`;
    root.append(make("p", { class: "labkit-quiet" }, quiet), folded(data.name, "The answer", data.folded));
  }
}

function answers({ model, root }) {
  const data = model.get("data");
  const kept = locked.get(data.name)?.choices ?? [];
  const chosen = data.parts.map((part, k) => [part, kept[k] ?? null]).filter(([, one]) => one !== null);
  const right = chosen.filter(([part, one]) => one === part.answer).length;
  const open = data.parts.length - chosen.length;
  root.setAttribute("aria-live", "polite");
  if (!chosen.length) {
    const quiet = "Choose an answer above and lock it in, then the answers appear here.";
    root.append(make("p", { class: "labkit-quiet" }, quiet), folded(data.name, "The answers", data.folded));
    return;
  }
  const rest = open ? ` ${count(open, "question")} still open: choose above, and lock in.` : "";
  const item = (part, k) =>
    make("li", { value: k + 1 }, make("div", { html: part.question }), make("div", { html: part.replies[kept[k]] }));
  const items = data.parts.flatMap((part, k) => ((kept[k] ?? null) === null ? [] : [item(part, k)]));
  root.append(make("p", {}, make("b", {}, `${right} of ${chosen.length} right.${rest}`)), make("ol", {}, ...items));
}

// -- tiles ------------------------------------------------------------------------------------------------------------

const FLOAT = /^[-+]?((\d+(_\d+)*\.?(\d+(_\d+)*)?|\.\d+(_\d+)*)(e[-+]?\d+)?|inf|infinity|nan)$/i;
const FRACTION = /^([-+]?\d+)\/(\d+)$/;
const TOLD = 3; // wrong tiles in words; the tiles show the others

/** A number from its digits as Python's `float` reads them; undefined where it is none. */
function float(text) {
  if (!FLOAT.test(text)) return undefined;
  const digits = text.toLowerCase().replaceAll("_", "").replace(/inf(inity)?/, "Infinity");
  return digits.endsWith("nan") ? NaN : Number(digits);
}

/** Read a tile as `read` in labkit/show/guess.py does: {empty}, {undefined: true}, {none}, {number} or {word}. */
function meant(typed, name, { none, how, held }) {
  const text = typed.trim();
  if (!text) return { empty: true };
  if (text === "?") return { unknown: true };
  if (none.includes(text.toLowerCase())) return { none: true };
  if (text === "True" || text === "False") return { number: Number(text === "True") };
  const [, over, under] = FRACTION.exec(text) ?? [];
  const number = text.includes("/") ? (Number(under) ? over / under : undefined) : float(text.replaceAll("−", "-"));
  if (number !== undefined) return { number };
  if (held.flat().some(({ word }) => word !== undefined)) return { word: text };
  throw new Error(`${name[0].toUpperCase()}${name.slice(1)}: ${quoted(text)} is not a number. ${how}`);
}

/** Tell whether a tile holds what was meant, as `Place.holds` does. */
function holds({ defined, number, word }, said) {
  const nothing = number === undefined && word === undefined;
  if (!defined) return !!said.unknown || (!!said.none && nothing);
  if (said.unknown || said.none || nothing) return !!said.none && nothing;
  if (said.word !== undefined || word !== undefined) return said.word === word;
  const [a, b] = [said.number, float(number)];
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) && Number.isNaN(b);
  if (a === b || !Number.isFinite(a) || !Number.isFinite(b)) return a === b;
  const near = Number.isInteger(b) ? 1e-6 : 0.005;
  return Math.abs(a - b) <= Math.max(near * Math.max(Math.abs(a), Math.abs(b)), 1e-9);
}

/** Compare what was typed with what the ranks hold, as `hold` does: sentences, and each tile's state and words. */
export function compared(data, typed) {
  const tiles = data.held.map((row, r) =>
    row.map((place, i) => {
      const name = data.rows[r].names[i];
      const said = meant(typed[r][i], name, data);
      const truth = place.defined ? place.text : "undefined";
      if (said.empty) return { text: truth };
      const right = holds(place, said);
      return { name, place, right, text: typed[r][i].trim(), mark: right ? "✓" : `✗ ${truth}` };
    }),
  );
  const filled = tiles.flat().filter(({ mark }) => mark);
  if (!filled.length) throw new Error("Every tile is still empty. Fill in at least one.");
  const wrong = filled.filter((tile) => !tile.right).map(({ name, place, text }) => {
    const begins = `${name[0].toUpperCase()}${name.slice(1)}: you said ${text}, but`;
    if (!place.defined) return `${begins} ${data.means} leaves nothing there that you can rely on.`;
    const nothing = place.number === undefined && place.word === undefined;
    return `${begins} it holds ${nothing ? "nothing" : place.text}.`;
  });
  const right = filled.length - wrong.length;
  const all = filled.length > 1 ? `All ${filled.length} tiles are right` : "Your tile is right";
  const some = `${right} of ${count(filled.length, "tile")} ${right === 1 ? "is" : "are"} right`;
  const empty = tiles.flat().length - filled.length;
  const more = wrong.length - TOLD;
  const rest = more > 0 ? [`${count(more, "more tile")} ${more === 1 ? "is" : "are"} wrong.`] : [];
  const head = `${wrong.length ? some : all}${empty ? `, ${empty} left empty` : ""}.`;
  return { sentences: [head, ...wrong.slice(0, TOLD), ...rest], tiles };
}

function tiles({ model, root, tell }) {
  const data = model.get("data");
  if (data.result) {
    root.innerHTML = data.result;
    return {};
  }
  const said = make("span", { role: "status" });
  const fields = data.rows.map(({ names, groups }) =>
    names.map((name, i) =>
      make("input", { type: "text", "aria-label": name, class: groups.includes(i) ? "labkit-apart" : null }),
    ),
  );
  const typed = () => fields.map((row) => row.map((field) => field.value));
  const compare = press("Compare with the ranks", () => {
    if (data.kernel) return tell({ rows: typed() }, said);
    try {
      result(root, data, compared(data, typed()));
    } catch (error) {
      said.innerHTML = alert(error);
    }
  });
  const same = press("Same on every rank", () =>
    fields[0].forEach((_, i) => {
      const first = fields.map((row) => row[i].value).find((value) => value.trim()) ?? "";
      for (const row of fields) row[i].value ||= first;
    }),
  );
  same.title = "Copies what you typed in a column to the ranks whose tile there is still empty";
  const alike = fields.length > 1 && new Set(fields.map((row) => row.length)).size === 1;
  const rows = data.rows.flatMap(({ rank, before }, r) => [
    make("div", { html: `${rank} ${before} →` }),
    make("div", {}, ...fields[r]),
  ]);
  root.append(
    make("div", { html: data.question }),
    make("div", { class: "labkit-tiles" }, ...rows),
    make("div", { class: "labkit-row" }, compare, ...(alike ? [same] : []), said),
  );
  return { say: () => (said.innerHTML = model.get("replied") ?? "") };
}

/** Show tiles beside the ranks', then the flow, as `Compared` in labkit/show/compared.py does. */
function result(root, data, { sentences, tiles }) {
  const said = make("div", { role: "status", tabindex: -1 }, ...sentences.map((text) => make("div", {}, text)));
  const box = ({ text, right, mark }) => {
    if (!mark) return make("span", { class: "labkit-tile" }, text);
    const judged = `labkit-tile ${right ? "labkit-right" : "labkit-wrong"}`;
    return make("span", { class: judged }, make("b", {}, text), make("br"), mark);
  };
  const rows = data.rows.flatMap(({ rank, before }, r) => [
    make("div", { html: `${rank} ${before} →` }),
    make("div", {}, ...tiles[r].map(box)),
  ]);
  root.replaceChildren(said, make("div", { class: "labkit-tiles" }, ...rows), make("div", { html: data.flow }));
  said.focus();
}

// -- steps ------------------------------------------------------------------------------------------------------------

const PACE = 1200; // milliseconds from step to step

function steps({ model, root, tell }) {
  const frames = () => model.get("data").frames;
  const last = frames().length - 1;
  const picture = make("div", { class: "labkit-frame" });
  const title = make("span", { role: "status" });
  const slider = make("input", { type: "range", min: 0, max: last, "aria-label": "step" });
  let timer, at, asked;
  const show = () => {
    at = Math.min(model.get("step") ?? at ?? 0, last);
    if (frames()[at] == null && asked !== at) tell({ step: (asked = at) }); // the kernel draws it, and those after it
    picture.style.minHeight = `${picture.offsetHeight}px`; // nothing jumps while the browser reads the picture
    picture.innerHTML = frames()[at] ?? "";
    slider.value = at;
    title.textContent = at < last ? `step ${at + 1} of ${last}` : `after step ${last}`;
    slider.setAttribute("aria-valuetext", title.textContent);
  };
  const go = (step) => {
    at = Math.max(0, Math.min(step, last));
    model.set("step", at);
    model.save_changes();
    show();
  };
  const playing = (wanted) => {
    clearInterval(timer);
    timer = wanted ? setInterval(() => (at < last ? go(at + 1) : playing(false)), PACE) : undefined;
    play.textContent = wanted ? "Pause" : "Play";
  };
  const play = press("Play", () => {
    if (!timer && at === last) go(0);
    playing(!timer);
  }, { class: "labkit-play" });
  const back = press("◀", () => go(at - 1), { "aria-label": "one step back", title: "one step back" });
  const on = press("▶", () => go(at + 1), { "aria-label": "one step on", title: "one step on" });
  slider.addEventListener("input", () => go(Number(slider.value)));
  const keys = (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way || event.target === slider) return; // the slider has arrows of its own
    event.preventDefault();
    go(at + way);
  };
  root.addEventListener("keydown", keys);
  root.setAttribute("tabindex", -1); // a click on the picture lets the arrows step
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "Step through the messages");
  const row = make("div", { class: "labkit-row" }, play, back, on, slider, title);
  root.append(make("div", { html: model.get("data").head ?? "" }), picture, row);
  show();
  return { show, end: () => (playing(false), root.removeEventListener("keydown", keys)) };
}

// -- all of them ------------------------------------------------------------------------------------------------------

const KINDS = { predict, choose, answer, answers, tiles, steps };

function render({ model, el }) {
  const root = make("div", { class: "labkit-live" });
  el.append(root);
  let waits = false; // for the kernel's reply: what is said meanwhile would take the place of what was said before
  const tell = (what, said) => {
    if (waits) return;
    waits = true;
    if (said) said.textContent = "Waiting for the kernel …";
    model.set("said", { ...what, nth: (model.get("said")?.nth ?? 0) + 1 }); // the same once more is a change, too
    model.save_changes();
  };
  const draft = {}; // what is chosen and not yet locked in
  let shown; // by what a kind shows what the kernel replied, or another step, and ends
  const draw = () => {
    waits = false;
    if (shown?.show) return shown.show();
    const focused = root.contains(document.activeElement);
    root.replaceChildren();
    shown = KINDS[model.get("kind")]?.({ model, root, tell, draft });
    shown?.say?.();
    const status = root.querySelector("[role=status]");
    status?.setAttribute("tabindex", -1);
    if (focused) status?.focus(); // what had it is gone, or cannot be used any more
  };
  const replied = () => {
    waits = false;
    shown?.say?.();
  };
  const heard = ({ detail }) => detail.name === model.get("data").name && draw();
  // The notebook's shortcuts stay out ("d d" deletes a cell): Notebook 7 hears keys before the view, JupyterLab after.
  root.addEventListener("focusin", ({ target }) => target.setAttribute("data-lm-suppress-shortcuts", true));
  root.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key !== "Enter" || event.target.type !== "text") return;
    event.preventDefault(); // Enter goes on to the next field, or to the button
    const stops = [...root.querySelectorAll("input[type=text], button")];
    stops[stops.indexOf(event.target) + 1]?.focus();
  });
  model.on("change:data", draw);
  model.on("change:step", draw);
  model.on("change:replied", replied);
  document.addEventListener(LOCKED, heard);
  draw();
  return () => {
    model.off?.("change:data", draw);
    model.off?.("change:step", draw);
    model.off?.("change:replied", replied);
    document.removeEventListener(LOCKED, heard);
    shown?.end?.();
    root.remove();
  };
}

export default { render };
