/* Views with controls: joined to labkit/show/view.mjs, whose `make` and KINDS are used here. Their data has
 * `controls`, a list of { name, label, options, form }, and `at`: of each name which of its options is chosen. What
 * the reader chose is `said` in the same form; the kernel, too, may set it.
 */

const unique = () => `labkit-${Math.random()}`; // each widget has this module once more, and all of them one page

/** Make a row of a label, a slider or a list of options, and what is chosen; or a row of buttons. */
function control({ name, label, options, form }, moved) {
  const id = unique();
  if (form === "buttons") {
    const radios = options.map((_, i) => make("input", { type: "radio", name: id, value: i }));
    const choices = radios.map((radio, i) => make("label", {}, radio, options[i]));
    const row = make("div", { class: "labkit-control", role: "radiogroup", "aria-labelledby": id });
    row.append(make("span", { id }, label), make("span", { class: "labkit-buttons" }, ...choices));
    row.addEventListener("change", (event) => moved(name, Number(event.target.value)));
    return { row, set: (i) => (radios[i].checked = true) };
  }
  const listed = form === "list";
  const said = make("span", { "aria-hidden": "true" }); // the input itself says it, as its value
  const items = listed ? options.map((text, i) => make("option", { value: i }, text)) : [];
  const input = listed
    ? make("select", { id }, ...items)
    : make("input", { id, type: "range", min: 0, max: options.length - 1, step: 1 });
  input.addEventListener("input", () => moved(name, Number(input.value)));
  const row = make("div", { class: "labkit-control" }, make("label", { for: id }, label), input);
  if (!listed) row.append(said);
  const set = (i) => {
    input.value = i;
    if (!listed) input.setAttribute("aria-valuetext", (said.textContent = options[i]));
  };
  return { row, set };
}

/** Put the controls of a view into its root and keep them as `said` has them; `shown` is called with each new
 * state. Returns what a kind returns.
 */
function controls({ model, root }, shown) {
  const data = model.get("data");
  let at = data.at;
  const rows = {};
  const moved = (name, i) => {
    go({ ...at, [name]: i });
    model.set("said", at);
    model.save_changes();
  };
  const go = (next) => {
    at = Object.fromEntries(Object.keys(data.at).map((name) => [name, next[name] ?? at[name]]));
    for (const [name, { set }] of Object.entries(rows)) set(at[name]);
    shown(at, rows);
  };
  for (const each of data.controls) rows[each.name] = control(each, moved);
  const all = make("div", { class: "labkit-controls" }, ...Object.values(rows).map(({ row }) => row));
  root.append(all);
  model.on("change:said", () => {
    const next = model.get("said");
    if (all.isConnected && next && Object.keys(at).some((name) => (next[name] ?? at[name]) !== at[name])) go(next);
  });
  return { say: () => go(model.get("said") ?? at) };
}

/** Unpack what gzip made of JSON, in base64. */
async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** A picture for each choice: what the kernel replied, or without one the one of `pictures` that `which` names, which
 * counts through the choices, those of the last control fastest.
 */
KINDS.grid = (view) => {
  const { model, root } = view;
  const { controls: each, kernel, which, pictures } = model.get("data");
  const picture = make("div", { class: "labkit-shown", "aria-live": "polite" });
  const unpacked = kernel ? null : unpack(pictures);
  const kind = controls(view, async (at) => {
    const nth = each.reduce((sum, { name, options }) => sum * options.length + at[name], 0);
    const html = kernel ? model.get("replied") : (await unpacked)[which[nth]];
    if (html !== null) picture.innerHTML = html; // else the kernel is about to reply
  });
  root.append(picture);
  return kind;
};
