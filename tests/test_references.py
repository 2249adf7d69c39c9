"""What lessons link to and name by number stands in the book's list of references, beside those lessons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.notebooks import FOLDER, sources

PAGE = FOLDER.parent / "book" / "references.md"
LINK = re.compile(r"\[((?:[^\[\]])*)\]\((\S+?(?:\(\w+\)\S*?)?)\)")  # an address may have one pair of brackets
ADDRESS = re.compile(r"https?://[^\s)>\]\"'`]+")
ISSUE = re.compile(r"\b(nccl|nccl-tests|aws-ofi-nccl|ucc),?\s+issue\s+(\d+)")
ARXIV = re.compile(r"arXiv:?\s+(\d{4}\.\d{5})")
OWNERS = {"aws-ofi-nccl": "aws", "ucc": "openucx"}  # of the others: NVIDIA
LESSON = re.compile(r"\.\./notebooks/([\w-]+)\.ipynb")


def address(url: str) -> str:
    """Return where a link leads, whichever part of the page it names and by whichever of PyTorch's two hosts."""
    return url.split("#")[0].rstrip("/.,;").replace("//pytorch.org/", "//docs.pytorch.org/")


def named(text: str) -> Iterator[str]:
    """Yield the addresses that a text links to, or names as an issue or by a number of arXiv."""
    yield from map(address, ADDRESS.findall(text))
    for number in ARXIV.findall(text):
        yield f"https://arxiv.org/abs/{number}"
    for repository, number in ISSUE.findall(text):
        yield f"https://github.com/{OWNERS.get(repository, 'NVIDIA')}/{repository}/issues/{number}"


def entries() -> list[str]:
    """Return the entries of the list, a line each."""
    return [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]


def external(entry: str) -> list[str]:
    """Return the addresses of an entry, without its lessons."""
    return [address(url) for _, url in LINK.findall(entry) if url.startswith("http")]


def lesson_links(entry: str) -> list[tuple[str, str]]:
    """Return each lesson of an entry: how it is labelled, and the name of its notebook."""
    return [(label, found[1]) for label, url in LINK.findall(entry) if (found := LESSON.fullmatch(url))]


def lessons() -> Iterator[tuple[str, str]]:
    """Yield each lesson's label with its text, and with that of its cards and questions."""
    paths = sorted(FOLDER.glob("*.ipynb"))
    labels = {path: path.stem.split("-")[0] if path.stem[0].isdigit() else path.stem for path in paths}
    for path, label in labels.items():
        yield label, "\n".join(sources(path, "markdown"))
    for path in sorted((FOLDER / "workbook").glob("*.py")):
        found = re.match(r"(?:lesson)?(\w+?)(?:_\w+)?$", path.stem)
        if found and found[1] in labels.values():
            yield found[1], path.read_text(encoding="utf-8")


def test_what_a_lesson_names_stands_in_the_list_beside_the_lesson():
    listed = {(label, url) for entry in entries() for label, _ in lesson_links(entry) for url in external(entry)}
    missing = {f"{label}: {url}" for label, text in lessons() for url in named(text) if (label, url) not in listed}
    assert sorted(missing) == []


def test_papers_that_tools_rest_on_stand_in_the_list():
    tools = sorted((FOLDER / "workbook" / "tools").rglob("*.py")) + sorted((FOLDER.parent / "labkit").rglob("*.py"))
    papers = {url for path in tools for url in named(path.read_text(encoding="utf-8")) if "//arxiv.org/" in url}
    assert papers
    assert papers - {url for entry in entries() for url in external(entry)} == set()


def test_every_lesson_in_the_list_exists_under_its_label():
    links = {link for entry in entries() for link in lesson_links(entry)}
    assert len(links) > 30
    for label, name in links:
        assert (FOLDER / f"{name}.ipynb").is_file(), name
        assert name == label or name.startswith(f"{label}-"), (label, name)


def test_every_entry_names_a_lesson():
    assert [entry for entry in entries() if not lesson_links(entry)] == []


def test_no_entry_stands_twice():
    addresses = Counter(url for entry in entries() for url in external(entry))
    assert [url for url, times in addresses.items() if times > 1] == []
    begun = Counter(entry.split("). ")[0].casefold() for entry in entries())
    assert [entry for entry, times in begun.items() if times > 1] == []


def test_an_issue_and_an_address_are_found_however_they_are_written():
    text = (
        "(arXiv\n2506.20252), nccl-tests issue\n106, [groups](https://pytorch.org/docs/stable/distributed.html#groups)"
    )
    assert set(named(text)) == {
        "https://arxiv.org/abs/2506.20252",
        "https://github.com/NVIDIA/nccl-tests/issues/106",
        "https://docs.pytorch.org/docs/stable/distributed.html",
    }


def test_files_that_the_list_links_to_exist():
    links = [url for entry in entries() for _, url in LINK.findall(entry) if not url.startswith("http")]
    assert [url for url in links if not (PAGE.parent / Path(url)).is_file()] == []
