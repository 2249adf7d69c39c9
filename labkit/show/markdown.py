"""A little markdown: paragraphs, lists, **bold** and `code`, as HTML and as plain text. Imports nothing of labkit."""

from __future__ import annotations

import re
from html import escape


def html(text: str) -> str:
    """Blocks as HTML.

    >>> html("Use `send`.")
    '<p>Use <code>send</code>.</p>'
    """
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()) if text.strip() else []:
        lines = [line.strip() for line in block.split("\n")]
        if all(line.startswith("- ") for line in lines):
            blocks.append(f"<ul>{''.join(f'<li>{inline(line[2:])}</li>' for line in lines)}</ul>")
        else:
            blocks.append(f"<p>{inline(' '.join(lines))}</p>")
    return "".join(blocks)


def inline(text: str) -> str:
    """One line as HTML.

    >>> inline("**x** < 3")
    '<b>x</b> &lt; 3'
    """
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)


def plain(text: str) -> str:
    """The text without its marks.

    >>> plain("Use **`send`**.")
    'Use send.'
    """
    return re.sub(r"\*\*|`", "", text)
