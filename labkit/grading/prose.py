"""Read prose as it stands in source: lines broken to fit are joined, and blank lines part paragraphs."""

from __future__ import annotations

import re

KEPT = re.compile(r"\s*[-*] |\s*\d+\. |\||    |```")  # what a line of its own begins with: lists, tables, code


def unwrapped(text: str) -> str:
    """Join the lines of each paragraph; lists, tables and code keep theirs.

    >>> unwrapped("Every rank has\\na tensor.\\n\\n- one\\n- and\\ntwo\\n")
    'Every rank has a tensor.\\n\\n- one\\n- and two'
    """
    lines: list[str] = []
    code = False
    for line in text.strip().splitlines():
        fence = line.startswith("```")
        if lines and line and lines[-1] and not (code or fence or KEPT.match(line) or lines[-1].startswith("```")):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        code ^= fence
    return "\n".join(lines)
