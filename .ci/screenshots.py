"""Take the README's picture anew, from a real run in JupyterLab.

python .ci/screenshots.py            writes .ci/screenshot.png
python .ci/screenshots.py FOLDER     writes every lesson there instead, run to its end, light and dark
"""

from __future__ import annotations

import sys
from pathlib import Path

from browse import DARK, LIGHT, Notebook, chromium
from cells import HERE
from playwright.sync_api import BrowserContext
from serve import Server, jupyterlab

PICTURE = HERE / "screenshot.png"
# The README's own example, and what a hang looks like.
CELLS = [
    "from labkit import start\n\nlab = start()\nlab",
    "%%px\nx = torch.tensor([rank + 1.0], device=device)\ndist.all_reduce(x)",
    'lab.look("x")',
    "%%px\nif rank != 2:\n    dist.all_reduce(x)",
]
SIZE = (920, 1190)


def picture(browser: BrowserContext, server: Server) -> None:
    """The short notebook of CELLS, with the file list folded away."""
    nb = Notebook(browser, server, server.write("all-reduce.ipynb", CELLS), SIZE)
    nb.page.keyboard.press("Control+b")
    nb.run_all()
    nb.page.mouse.move(0, 0)
    nb.page.screenshot(path=PICTURE)
    nb.close()


def lessons(browser: BrowserContext, server: Server, folder: Path) -> None:
    """Each lesson on one long page, as far as JupyterLab draws it, in both themes."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(server.notebooks.glob("*.ipynb")):
        nb = Notebook(browser, server, path.name, (1200, 6000))
        nb.run_all(timeout=300)
        for theme in (DARK, LIGHT):
            nb.theme(theme)
            nb.page.screenshot(path=folder / f"{path.stem} in {theme}.png")
        nb.close()
        server.end_kernels()


def main() -> None:
    """The README's picture, or with a folder on the command line the lessons."""
    with jupyterlab() as server, chromium() as browser:
        if len(sys.argv) > 1:
            lessons(browser, server, Path(sys.argv[1]))
        else:
            picture(browser, server)


if __name__ == "__main__":
    main()
