"""Write a figure as a small SVG whose bytes are the same for equal data, and as an `<img>` with its own words.

An image, because an untrusted notebook (a fresh clone) shows no other SVG: JupyterLab strips inline `<svg>` down to
its text. The page's CSS variables end at an image, but its `color-scheme` does not: it decides which of the
picture's two palettes is used. JupyterLab sets it by its theme; pages that nbconvert makes and VS Code do not, so every
picture brings SWITCH along, which does, by what their <body> says. Elsewhere (GitHub), the browser's own preference
decides. So the ground is painted too, in the page's colour: whichever palette it is, it can be read.

matplotlib lays out and draws; `Writer` writes what it draws: tenths of a point as whole numbers, relative paths,
every style once, text as text. matplotlib's own writer needs 5 times the characters, and global settings to be the same
twice: those another thread may be changing just now, for JupyterLab runs callbacks of widgets beside a cell.
"""

from __future__ import annotations

import base64
import re
from html import escape
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backend_bases import GraphicsContextBase, RendererBase
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Affine2D, Transform

# Colours that follow the theme, by what they are on a light page: (name, on a dark page).
PAGE, INK, FAINT, EDGE, GRID = "#ffffff", "#111111", "#5c5c57", "#c6c6bf", "#e4e4de"
PLAIN, WRONG, YELLOW = "#e2e2dc", "#9c2a00", "#b3a800"
THEME = {
    PAGE: ("page", "#111111"),  # JupyterLab's own grounds
    INK: ("ink", "#eeeeee"),
    FAINT: ("faint", "#a8a8a2"),
    EDGE: ("edge", "#4a4a46"),
    GRID: ("grid", "#333330"),
    PLAIN: ("plain", "#3a3a37"),
    WRONG: ("wrong", "#ff9066"),
    YELLOW: ("yellow", "#f0e442"),
}
READABLE = 9  # pixels
SWITCH = (
    "<style>:is([data-jp-theme-light=true],.vscode-light) .labkit-picture{color-scheme:light}"
    ":is([data-jp-theme-light=false],.vscode-dark) .labkit-picture{color-scheme:dark}</style>"
)
FONTS = {"normal": "'DejaVu Sans',Verdana,Arial,sans-serif", "mono": "'DejaVu Sans Mono',Menlo,monospace"}
LETTERS = {Path.MOVETO: "m", Path.LINETO: "l", Path.CURVE3: "q", Path.CURVE4: "c"}
ANCHORS = {"left": "start", "center": "middle", "right": "end"}
HALO = "halo"  # the id of a text around which the page is painted, so that no line crosses it
HATCH = 72  # points from a hatch's pattern to its next repetition


class Writer(RendererBase):
    """The writer of what a figure draws as SVG; nothing is clipped. `width` and `height` are points."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__()
        self.width, self.height = width, height
        self._body: list[str] = []
        self._classes: dict[str, str] = {}
        self._patterns: dict[str, str] = {}

    def get_canvas_width_height(self) -> tuple[float, float]:
        return self.width, self.height

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> tuple[float, float, float]:
        return text_to_path.get_text_width_height_descent(s, prop, ismath)

    def draw_path(self, gc: GraphicsContextBase, path: Path, transform: Transform, rgbFace: Any = None) -> None:
        data = _data(path, transform + Affine2D().scale(1, -1).translate(0, self.height))
        look = [f"fill:{_paint(rgbFace)}"]
        if gc.get_forced_alpha():
            look.append(f"opacity:{gc.get_alpha():g}")
        if gc.get_linewidth():
            look.append(f"stroke:{_paint(gc.get_rgb())};stroke-width:{10 * gc.get_linewidth():.3g}")
            dashes: Any = gc.get_dashes()[1]
            if dashes is not None:
                look.append("stroke-dasharray:" + " ".join(f"{10 * dash:.3g}" for dash in dashes))
        self._body.append(f'<path class="{self._class(look)}" d="{data}"/>')
        if gc.get_hatch():
            self._body.append(f'<path fill="url(#{self._pattern(gc)})" d="{data}"/>')

    def draw_text(
        self, gc: GraphicsContextBase, x: float, y: float, s: str, prop: Any, angle: float, ismath: Any = False,
        mtext: Any = None,
    ) -> None:  # fmt: skip
        assert mtext is not None, "a text of a figure"
        anchor = ANCHORS[mtext.get_ha()]
        look = [
            f"font-size:{10 * prop.get_size_in_points():g}px",
            f"text-anchor:{anchor}",
            f"fill:{_paint(gc.get_rgb())}",
        ]
        if prop.get_weight() == "bold":
            look.append("font-weight:700")
        if "Mono" in prop.get_family()[0]:
            look.append(f"font-family:{FONTS['mono']}")
        if mtext.get_gid() == HALO:
            look.append("paint-order:stroke;stroke:var(--page);stroke-width:20")
        x = mtext.get_transform().transform(mtext.get_unitless_position())[0]  # the browser's letters may be narrower
        place = f'class="{self._class(look)}" x="{10 * x:.0f}" y="{10 * y:.0f}"'
        self._body.append(f"<text {place}>{escape(s, quote=False)}</text>")

    def _class(self, look: list[str]) -> str:
        return self._classes.setdefault(";".join(look), f"s{len(self._classes)}")

    def _pattern(self, gc: GraphicsContextBase) -> str:
        paint = _paint(gc.get_hatch_color())
        path = gc.get_hatch_path()
        assert path is not None, "asked for a hatch only"
        data = _data(path, Affine2D().scale(HATCH))
        look = f'd="{data}" style="fill:{paint};stroke:{paint};stroke-width:10"'
        return self._patterns.setdefault(look, f"h{len(self._patterns)}")

    def written(self, scale: float = 1.0) -> bytes:
        """Return the SVG of all that was drawn, shown at so many times its size."""
        light = ";".join(f"--{name}:{colour}" for colour, (name, _) in THEME.items())
        dark = ";".join(f"--{name}:{colour}" for name, colour in THEME.values())
        rules = "".join(f".{name}{{{look}}}" for look, name in self._classes.items())
        side = 10 * HATCH
        patterns = "".join(
            f'<pattern id="{name}" patternUnits="userSpaceOnUse" width="{side}" height="{side}"><path {look}/>'
            "</pattern>"
            for look, name in self._patterns.items()
        )
        width, height = f"{scale * self.width:g}pt", f"{scale * self.height:g}pt"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {10 * self.width:g} {10 * self.height:g}"><style>:root{{{light}}}'
            f"@media(prefers-color-scheme:dark){{:root{{{dark}}}}}*{{stroke-linejoin:round}}"
            f"text{{font-family:{FONTS['normal']}}}{rules}</style>{patterns}"
            f'<rect width="100%" height="100%" fill="var(--page)"/>{"".join(self._body)}</svg>\n'
        ).encode()


def svg(ax: Axes, scale: float = 1.0) -> bytes:
    """Return the figure of these axes as SVG, `scale` times as large as it was drawn."""
    figure = ax.figure
    assert isinstance(figure, Figure), "axes of a figure of their own"
    width, height = figure.get_size_inches() * 72
    writer = Writer(round(float(width), 1), round(float(height), 1))
    figure.draw(writer)
    return writer.written(scale)


def img(picture: bytes, alt: str) -> str:
    """Return HTML that shows the picture anywhere, also in an untrusted notebook; `alt` tells the same in words.

    A picture wider than its place shrinks, but only as far as its labels can be read; then the output scrolls.
    """
    data = base64.b64encode(picture).decode()
    return (
        f'<img alt="{escape(alt)}" class="labkit-picture" style="max-width: 100%; min-width: {_narrowest(picture)}px" '
        f'src="data:image/svg+xml;base64,{data}">{SWITCH}'
    )


def _narrowest(picture: bytes) -> int:
    """Return the width, in pixels, at which the smallest label of a picture of ours is READABLE pixels high."""
    size = re.search(rb'width="([\d.]+)pt".*?viewBox="0 0 ([\d.]+)', picture)
    labels = [float(high) for high in re.findall(rb"font-size:([\d.]+)px", picture)]
    return round(min(float(size[1]) / 72 * 96, READABLE * float(size[2]) / min(labels))) if size and labels else 0


def _paint(rgba: Any) -> str:
    if rgba is None:
        return "none"
    paint = to_hex(rgba)
    return f"var(--{THEME[paint][0]})" if paint in THEME else paint


def _data(path: Path, transform: Transform) -> str:
    """Write a path in whole tenths of a point, places relative to the one before, level and upright lines with one."""
    out: list[str] = []
    start = at = (0, 0)
    for numbers, code in path.iter_segments(transform, simplify=False):
        if code == Path.CLOSEPOLY:
            out.append("z")
            at = start
            continue
        rounded = [round(10 * float(v)) for v in numbers]
        places = list(zip(rounded[::2], rounded[1::2], strict=True))
        steps = [(x - at[0], y - at[1]) for x, y in places]
        at = places[-1]
        if code == Path.MOVETO:
            start = at
        (dx, dy), *_ = steps
        if code == Path.LINETO and 0 in (dx, dy):
            out.append(f"h{dx}" if dx else f"v{dy}" if dy else "")
        else:
            out.append(LETTERS[code] + " ".join(f"{x} {y}" for x, y in steps))
    return "".join(out).replace(" -", "-")
