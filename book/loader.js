// Bring the views of a page to life, without a kernel: `view` is the module labkit/show/view.mjs, which stands above.
// Where this script does not run, the page shows what the notebook showed.
for (const place of document.querySelectorAll(".labkit-view")) {
  const state = JSON.parse(place.querySelector("script").textContent);
  const heard = new EventTarget();
  const model = {
    get: (name) => state[name] ?? null,
    set(name, value) {
      state[name] = value;
      heard.dispatchEvent(new Event(`change:${name}`));
    },
    save_changes() {},
    on: (event, hear) => heard.addEventListener(event, hear),
    off: (event, hear) => heard.removeEventListener(event, hear),
  };
  const live = document.createElement("div");
  view.render({ model, el: live });
  place.replaceChildren(live);
}
