"""A figure as a small SVG whose bytes are the same for equal data, and as an `<img>` that carries its own words.

Pictures stand on a light card of their own: an SVG in an `<img>` sees neither JupyterLab's theme nor its colours,
and a card reads well on both. Text stays text. No pyplot, no global style.
"""

from __future__ import annotations

import base64
import io
import re
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

UNIT = 36.0  # points that one unit of a picture's axes takes
CARD, EDGE, INK, FAINT = "#fafaf6", "#c6c6bf", "#111111", "#5c5c57"
FAMILIES = {"sans-serif": "'DejaVu Sans',Verdana,Arial,sans-serif", "monospace": "'DejaVu Sans Mono',Menlo,monospace"}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "labkit",
    "font.family": "sans-serif",
    "path.simplify": False,
}


def card(width: float, height: float) -> Axes:
    """Axes of a new figure, `width` × `height` units of UNIT points, y downwards, on a light rounded card."""
    figure = Figure(figsize=(width * UNIT / 72, height * UNIT / 72))
    figure.patch.set_alpha(0)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    ax.axis("off")
    box = FancyBboxPatch((0.06, 0.06), width - 0.12, height - 0.12, boxstyle="round,pad=0,rounding_size=0.25")
    box.set(facecolor=CARD, edgecolor=EDGE, linewidth=0.8, zorder=-10)
    ax.add_patch(box)
    return ax


def svg(ax: Axes) -> bytes:
    """The figure of these axes as SVG; nothing is clipped."""
    figure = ax.figure
    assert isinstance(figure, Figure), "axes of a figure of their own"
    for artist in ax.get_children():
        artist.set_clip_on(False)
    out = io.BytesIO()
    with mpl.rc_context(STYLE):
        FigureCanvasSVG(figure)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return smaller(out.getvalue().decode()).encode()


def smaller(text: str) -> str:
    """The same picture in a third of the characters: no metadata, no empty groups, one decimal, styles as classes."""
    text = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' transform="rotate\(-?0 [^)]*\)"|</?g\b[^>]*>| xmlns:xlink="[^"]*"', "", text)
    text = re.sub(r' (d|x|y)="([^"]*)"', lambda m: f' {m[1]}="{_path(m[2]) if m[1] == "d" else _round(m[2])}"', text)
    for name, family in FAMILIES.items():
        text = re.sub(rf"font-family: [^;\"]*\b{name}(?=[;\"])", f"font-family: {family}", text)
    styles = list(dict.fromkeys(re.findall(r'style="([^"]*)"', text)))
    names = {style: f"s{i}" for i, style in enumerate(styles)}
    text = re.sub(r'style="([^"]*)"', lambda m: f'class="{names[m[1]]}"', text)
    rules = "".join(f".{name}{{{style}}}" for style, name in names.items())
    text = text.replace("</style>", f"{rules}</style>", 1)
    return re.sub(r">\s+<", "><", text).strip() + "\n"


def _round(text: str) -> str:
    """Numbers with one decimal, a tenth of a point: nobody sees less."""
    return re.sub(r"-?\d+\.\d+", lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), text)


def _path(d: str) -> str:
    """A path in few characters: H and V for level and upright lines, and z alone goes back to the start."""
    out: list[str] = []
    x = y = ""
    start, back = ("", ""), False
    for command, rest in re.findall(r"([MLCQz])([^MLCQz]*)", _round(d)):
        numbers = rest.split()
        if command == "z":
            out[-1:] = ["z"] if back else [out[-1], "z"]
            continue
        a, b = numbers[-2:]
        if command == "M":
            start = (a, b)
        back = command == "L" and (a, b) == start
        if command == "L" and (a == x or b == y):
            out.append("" if a == x and b == y else f"V{b}" if a == x else f"H{a}")
        elif command == "Q":
            steps = (float(v) - float((x, y)[i % 2]) for i, v in enumerate(numbers))
            out.append("q" + " ".join(f"{step:.1f}".removesuffix(".0") for step in steps))
        else:
            out.append(command + " ".join(numbers))
        x, y = a, b
    return "".join(out)


def img(picture: bytes, alt: str) -> str:
    """HTML that shows the picture anywhere, also in an untrusted notebook; `alt` tells the same in words."""
    data = base64.b64encode(picture).decode()
    return f'<img alt="{escape(alt)}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">'
