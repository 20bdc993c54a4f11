"""What the documentation names is there: files, headings, commands and their options."""

import ast
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from graft.cli.main import app

ROOT = Path(__file__).parents[1]
COMMAND = get_command(app)
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FILE = re.compile(
    r"(?<!-out )\b(?:benchmarks|docs|examples|graft|results|tests)/[\w./-]+\.(?:jsonl|md|png|py)\b"
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")


def anchors(page: Path) -> set[str]:
    """Its headings, as a link names them."""
    headings = HEADING.findall(BLOCK.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def commands(text: str) -> list[str]:
    """What is to be typed: lines of blocks, joined where they go on, and code within lines."""
    blocks = [block.replace("\\\n", " ") for block in BLOCK.findall(text)]
    lines = [line for block in blocks for line in block.splitlines()]
    lines += [code.replace("\n", " ") for code in INLINE.findall(BLOCK.sub("", text))]
    lines = [line.split(";")[0].strip().removeprefix("$ ") for line in lines]
    return [line.split("  #")[0] for line in lines if line.startswith("graft ")]


def unknown(line: str) -> str | None:
    """The first word of a command that is none, or an option that it does not have."""
    words = shlex.split(line.replace("...", " "))[1:]
    command = COMMAND
    below = getattr(command, "commands", {})
    while words and words[0] in below:
        command = below[words.pop(0)]
        below = getattr(command, "commands", {})
    if below and words and re.fullmatch(r"[a-z]+", words[0]):
        return words[0]
    options = {name for each in command.params for name in each.opts + each.secondary_opts}
    given = [word.split("=")[0] for word in words if re.match(r"--[a-z]", word)]
    return next((word for word in given if word not in {"--help", *options}), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page):
    named = set(FILE.findall(page.read_text()))
    named = {each for each in named if not re.search(r"[A-Z]{2}", Path(each).stem)}  # FILE, SUITE
    assert [each for each in sorted(named) if not (ROOT / each).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path) if path else page
        assert other.exists(), target
        if anchor:
            assert anchor in anchors(other), target


def test_site_has_every_page():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = re.findall(r"[\w-]+\.md", str(nav))
    assert sorted(pages) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_pages_of_the_site_link_only_within_it():
    for page in (ROOT / "docs").glob("*.md"):
        targets = [each.partition("#")[0] for each in LINK.findall(page.read_text())]
        outside = [each for each in targets if each.startswith("..")]
        assert outside == [], page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_there_with_their_options(page):
    wrong = {line: word for line in commands(page.read_text()) if (word := unknown(line))}
    assert wrong == {}


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_image_is_built_from_files_that_are_there_and_starts_a_command(name):
    lines = (ROOT / name).read_text().splitlines()
    copied = [each for line in lines if line.startswith("COPY ") for each in line.split()[1:-1]]
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    assert sorted(f"!{each}" for each in copied) == [each for each in sent if each[0] == "!"]
    assert [each for each in copied if not (ROOT / each).exists()] == []
    words = [json.loads(line.partition(" ")[2]) for line in lines if line[:3] in ("ENT", "CMD")]
    started = " ".join(word for each in words for word in each)
    assert started.startswith("graft serve ")
    assert unknown(started) is None


def test_a_command_that_is_gone_would_be_found():
    assert unknown("graft bench PROMPTS --engine vllm=PY") is None
    assert unknown("graft run QUESTION --doc FILE") is None
    assert unknown("graft index nothing") == "nothing"
    assert unknown("graft run --no-such-option") == "--no-such-option"
    text = "Ask `graft run X` or\n```\ngraft bench \\\n    --gone   # now\n```\n"
    assert [*map(unknown, commands(text))] == ["--gone", None]


def test_the_memory_table_follows_from_the_models_shapes():
    shapes = {  # parameters in billions, layers, KV heads, head size
        "Qwen2.5-1.5B": (1.54, 28, 2, 128),
        "Qwen2.5-3B": (3.09, 36, 2, 128),
        "Qwen2.5-7B": (7.62, 28, 4, 128),
        "Llama-3.1-8B": (8.03, 32, 8, 128),
        "Qwen2.5-14B": (14.77, 48, 8, 128),
        "Qwen2.5-32B": (32.76, 64, 8, 128),
    }
    page = (ROOT / "docs" / "quickstart.md").read_text()
    rows = re.findall(r"^\| (\S+B) \| ([\d.]+) GB \| ([\d.]+) GB \| ([\d.]+) GB \|$", page, re.M)
    assert [row[0] for row in rows] == list(shapes)
    for name, *given in rows:
        billions, layers, heads, size = shapes[name]
        token = 4 * layers * heads * size / 1e9
        for shown, exact in zip(given, (2 * billions, 8192 * token, 32768 * token), strict=True):
            assert float(shown) == pytest.approx(exact, abs=0.051)


def printed_texts() -> list[str]:
    """The texts of each source file, with a mark for each part that is computed."""
    found = [(ROOT / "Makefile").read_text()]
    for file in (ROOT / "graft").rglob("*.py"):
        nodes = ast.walk(ast.parse(file.read_text()))
        texts = (node.value for node in nodes if isinstance(node, ast.Constant))
        found.append("\0".join(text for text in texts if isinstance(text, str)))
    return found


def is_printed(line: str, texts: list[str]) -> bool:
    """Whether a third of a line's pairs of words are in one of the files."""
    pairs = [" ".join(pair) for pair in pairwise(line.split())]
    return any(3 * sum(pair in text for pair in pairs) >= len(pairs) for text in texts)


def test_lines_of_the_troubleshooting_page_are_printed():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    cells = [row.split(" | ")[0] for row in text.splitlines() if row.startswith("| ")]
    lines = [line for cell in cells for line in INLINE.findall(cell) if line.count(" ") > 3]
    lines = [re.sub(r"^(error|warning|note|problem): ", "", line) for line in lines]
    assert len(lines) > 30
    texts = printed_texts()
    assert [line for line in lines if not is_printed(line, texts)] == []
    assert not is_printed("this line is printed by no command of the package", texts)
