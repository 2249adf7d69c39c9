"""Take the README's pictures anew, from real runs.

python .ci/screenshots.py            writes .ci/screenshot.png, JupyterLab, and .ci/ring.svg, a ring that moves
python .ci/screenshots.py FOLDER     writes every lesson there instead, run to its end, light and dark
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from browse import DARK, LIGHT, Notebook, chromium
from cells import HERE
from playwright.sync_api import BrowserContext
from serve import Server, jupyterlab

from labkit import start
from labkit.content import exercises

PICTURE, RING = HERE / "screenshot.png", HERE / "ring.svg"
# The README's own example, and what a hang looks like.
CELLS = [
    "from labkit import start\n\nlab = start()\nlab",
    "%%px\nx = torch.tensor([rank + 1.0], device=device)\ndist.all_reduce(x)",
    'lab.look("x")',
    "%%px\nif rank != 2:\n    dist.all_reduce(x)",
]
SIZE = (920, 1190)
FRAME = 2.0  # seconds that a step of the ring is seen


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


def ring() -> bytes:
    """The messages of the workbook's own ring all-reduce, as four ranks have just sent them."""
    lab = start(4, "gloo")
    try:
        lab.run(exercises.find("ring_all_reduce").code)
        lab.run("x = torch.arange(4.0) + 10 * rank\ntotal = ring_all_reduce(x)")
        film = lab.last.steps().film
    finally:
        lab.stop()
    return moving([film.svg(step) for step in range(film.count + 1)])


def moving(frames: list[bytes]) -> bytes:
    """Frames of one size as one SVG that shows them in turn; the last one alone to readers who want no motion."""
    whole, share = FRAME * len(frames), 100 / len(frames)
    head = re.match(rb"<svg[^>]*>", frames[0])
    assert head, "a picture of labkit's own"
    style = (
        f"@keyframes turn{{0%,{share:.3f}%{{visibility:visible}}{share + 0.001:.3f}%,100%{{visibility:hidden}}}}"
        f"svg svg{{visibility:hidden;animation:turn {whole:g}s infinite}}"
        + "".join(f"#f{k}{{animation-delay:{FRAME * k - whole * (k > 0):g}s}}" for k in range(len(frames)))
        + "@media(prefers-reduced-motion:reduce){svg svg{animation:none}"
        + f"#f{len(frames) - 1}{{visibility:visible}}}}"
    )
    parts = [re.sub(rb'(class="|url\(#|id="|(?<=[}>])\.)([sh]\d+)', rb"\1f%d\2" % k, f) for k, f in enumerate(frames)]
    parts = [
        re.sub(rb'^<svg (.*?) width="\S+" height="\S+"', rb'<svg id="f%d" \1' % k, part) for k, part in enumerate(parts)
    ]
    return head[0] + f"<style>{style}</style>".encode() + b"".join(parts) + b"</svg>\n"


def main() -> None:
    """The README's pictures, or with a folder on the command line the lessons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="write the lessons there")
    folder = parser.parse_args().folder
    if folder is None:
        RING.write_bytes(ring())
    with jupyterlab() as server, chromium() as browser:
        if folder:
            lessons(browser, server, folder)
        else:
            picture(browser, server)


if __name__ == "__main__":
    main()
