"""A view on a page without a kernel, as the book shows it: a model that only keeps what it is given."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page

from labkit.show.view import View

PAGE = """<!doctype html><meta name="viewport" content="width=device-width"><style>
:root {{ color-scheme: light dark }} body {{ font-family: sans-serif; margin: 8px }} {style}</style>
<main id="view"></main><script type="module">{module}
const state = {{ ...{page}, said: null, replied: null }};
const heard = {{}};
window.model = {{
  get: name => state[name],
  set(name, value) {{ state[name] = value; (heard[`change:${{name}}`] ?? []).forEach(each => each()) }},
  save_changes() {{}},
  on: (name, each) => (heard[name] ??= []).push(each),
}};
render({{ model, el: document.getElementById("view") }});
</script>"""


def shown(page: Page, kind: type[View], what: dict[str, Any]) -> None:
    """Show on this page what `labkit.content.view` has made, with the module and the looks of a kind of view."""
    html = PAGE.format(style=kind._css, module=kind._esm, page=json.dumps(what))
    page.set_content(html)
    page.wait_for_function("document.getElementById('view').childElementCount")
