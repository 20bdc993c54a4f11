"""Questions for a target to answer and a draft head to learn from.

    python -m benchmarks.heads.questions --wiki enwik8.gz --meetings qmsum/val.jsonl.gz \
        --texts essays.json.gz --chats sharegpt.jsonl.gz --code SOURCES \
        --foreign German=sentences.txt --exclude TESTS --count 6000 --out questions.jsonl.gz
    graft train answers --data questions.jsonl.gz --regenerate 6000 --out answers.jsonl ...
    python -m benchmarks.heads.questions --asked answers.jsonl --exclude TESTS --out more.jsonl.gz

Each line is a conversation of one message: pages of a Wikipedia dump (one, or several as numbered
passages), stretches of meetings or of other texts, from 500 to about 7,000 tokens, and something to
do with them; functions of Python files; first messages of chats; short questions about the titles
of pages; sentences to translate. `--asked` takes the questions that the target wrote itself. A text
that shares 13 words in a row with the files under TESTS is left out, and a shorter one that stands
in them. `--wiki` needs `pip install mwparserfromhell`.
"""

import argparse
import ast
import gzip
import html
import json
import math
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from tqdm import tqdm

from graft.documents.overlap import Overlap, texts_in
from graft.documents.records import read_records

PAGE = re.compile(r"<title>(.*?)</title>.*?<text[^>]*>(.*?)</text>", re.DOTALL)
SHORTEST, LONGEST = 2_000, 29_000  # characters of a document
CHAT = (16, 6_000)  # characters of a message
FUNCTION = (300, 4_000)  # characters of source
DO = (
    "Summarize this.",
    "Write a summary of one paragraph.",
    "Write a detailed summary of the text above.",
    "Summarize the report in about 200 words.",
    "What are the main points? Answer in full sentences.",
    "List the key points of the text as bullets.",
    "Explain in your own words what this is about.",
    "What is said about {topic}?",
    "Summarize what the text says about {topic}.",
    "Answer from the text alone: why does {topic} matter here?",
    "Describe {topic}, and quote the sentences your answer rests on.",
    "Quote the three most important sentences word for word, then explain each.",
    "Write five questions about the text and answer them.",
    "Continue the text in the same style.",
    "Rewrite the beginning of the text in simpler words.",
    "Give the names, dates and numbers in the text, and say what each is.",
)
MEETING = (
    "Summarize the whole meeting.",
    "What were the main discussion points of the meeting?",
    "What was decided, and by whom?",
    "Summarize what was said about {topic}.",
    "What did the participants think of {topic}?",
    "Write the minutes of this meeting.",
)
CODE = (
    "Explain what this function does.",
    "Write unit tests for this function.",
    "Add type hints and a docstring to this function. Answer with the code.",
    "Rewrite this function so that it is easier to read. Answer with the code.",
    "Find errors in this function and correct them.",
    "Translate this function to JavaScript.",
)
FACTS = (
    "What is {topic}?",
    "who is {topic}",
    "what is {topic} known for",
    "When and where did {topic} begin?",
    "where does the name {topic} come from",
    "Why is {topic} important?",
    "who was involved in {topic}",
    "How old is {topic}?",
    "Tell me about {topic} in one sentence.",
    "Compare {topic} with {other}.",
    # `--asked` reads the answers to these.
    "Write ten short quiz questions about {topic}, one on each line, without answers.",
    "Write ten questions that people search for about {topic}, one on each line, without answers.",
)
TRANSLATE = (
    "Translate {language} to English: {text}",
    "Translate {language} to English: {text}",
    "Translate this sentence to English.\n\n{text}",
    "What does this mean in English? {text}",
)
ASKED = re.compile(r"^\W*(?:\d+[.)]\s*)?(.{12,160}\?)\W*$")
COMPLETE = "Complete the following Python function. Answer with the code.\n\n```python\n{}\n```"
ANY_WORD = re.compile(r"\w+")
SHORT = 160  # characters of a test's question that has fewer words than `Overlap` compares
TITLE = re.compile("<title>(.*?)</title>")
WORD = re.compile(r"\b[A-Z]?[a-z]{5,}\b")


def wikipedia(path: Path) -> list[str]:
    """Pages as text, redirects and stubs left out."""
    import mwparserfromhell

    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        pages = PAGE.findall(file.read())
    found = []
    for title, source in tqdm(pages, desc="pages"):
        if len(source) > SHORTEST and ":" not in title:
            text = mwparserfromhell.parse(html.unescape(source)).strip_code().strip()
            if len(text) > SHORTEST:
                found.append(f"{title}\n\n{text}")
    return found


def meetings(path: Path) -> list[str]:
    """Transcripts in the layout of QMSum, a line for each turn."""
    return [
        "\n".join(f"{t['speaker']}: {t['content']}" for t in record.content["meeting_transcripts"])
        for record in read_records([str(path)])
    ]


def texts(path: Path) -> list[str]:
    """Every long string of a file's records."""
    found = (text for record in read_records([str(path)]) for text in texts_in(record.content))
    return [text for text in found if len(text) > SHORTEST]


def chats(paths: list[Path], chosen: random.Random) -> Iterator[str]:
    """First messages of the user, each once."""
    found = []
    for record in read_records(map(str, paths)):
        turns = record.content.get("conversations") or record.content.get("messages") or []
        text = next((t.get("value", t.get("content")) for t in turns[:2] if _of_user(t)), "")
        if CHAT[0] <= len(text) <= CHAT[1]:
            found.append(text)
    chosen.shuffle(found)
    return iter(found)


def functions(folders: list[Path], chosen: random.Random) -> Iterator[str]:
    """Functions of Python files with something to do; every third to be completed."""
    found = []
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            found += _functions(path)
    chosen.shuffle(found)
    for number, (source, start) in enumerate(found):
        if number % 3 == 0 and start:
            yield COMPLETE.format(start)
        else:
            yield f"```python\n{source}\n```\n\n{chosen.choice(CODE)}"


def _functions(path: Path) -> Iterator[tuple[str, str]]:
    """Sources of functions, and the part up to the docstring's end if there is one."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.end_lineno:
            source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            if FUNCTION[0] <= len(source) <= FUNCTION[1]:
                head = node.body[0].end_lineno if ast.get_docstring(node) else 0
                start = "\n".join(lines[node.lineno - 1 : head]) if head else ""
                yield source, textwrap.dedent(start)


def facts(options: argparse.Namespace, chosen: random.Random) -> Iterator[str]:
    """Short questions about the titles of pages, and those that the target asked."""
    if options.asked:
        found = sorted({each for path in options.asked for each in asked(path)})
        chosen.shuffle(found)
        yield from found
    titles = titles_of(options.wiki) if options.wiki else []
    while titles:
        topic, other = chosen.choices(titles, k=2)
        yield chosen.choice(FACTS).format(topic=topic, other=other)


def titles_of(path: Path) -> list[str]:
    """Titles of a Wikipedia dump's pages."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        return [html.unescape(each) for each in TITLE.findall(file.read()) if ":" not in each]


def asked(path: Path) -> Iterator[str]:
    """The lines of answers that are questions, where the user asked for questions."""
    for record in read_records([str(path)]):
        question, *answers = (each["content"] for each in record.content["messages"])
        if question.startswith("Write ten"):
            for line in "\n".join(answers).splitlines():
                if found := ASKED.match(line):
                    yield found[1]


def translations(options: argparse.Namespace, chosen: random.Random) -> Iterator[str]:
    """Lines of files in other languages, to be translated to English."""
    found = []
    for each in options.foreign:
        language, _, path = each.partition("=")
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        found += [(language, line) for line in lines]
    chosen.shuffle(found)
    for language, text in found:
        yield chosen.choice(TRANSLATE).format(language=language, text=text)


def _of_user(turn: dict[str, str]) -> bool:
    return turn.get("from", turn.get("role")) in ("human", "user")


def stretch(chosen: random.Random, text: str, length: int) -> str:
    """Some of a text, from the start of a line."""
    if len(text) <= length:
        return text
    first = chosen.randrange(len(text) - length)
    return text[text.find("\n", first, first + length // 4) + 1 or first :][:length]


def passages(chosen: random.Random, pages: list[str], length: int) -> str:
    """Several pages' stretches, numbered."""
    count = chosen.randint(2, 6)
    parts = [stretch(chosen, chosen.choice(pages), length // count) for _ in range(count)]
    name = chosen.choice(("Passage {}:\n", "[{}] ", "Document {}: "))
    return "\n\n".join(name.format(n) + part for n, part in enumerate(parts, 1))


def question(chosen: random.Random, document: str, tasks: tuple[str, ...]) -> str:
    """The document with something to do, before or after it."""
    words = WORD.findall(document) or ["it"]
    task = chosen.choice(tasks).format(topic=chosen.choice(words))
    if chosen.random() < 0.3:
        return f"{task.replace('above', 'below')}\n\n{document}"
    return f"{document}\n\n{task}"


def documents(options: argparse.Namespace, chosen: random.Random) -> Iterator[str]:
    """Questions about documents of all kinds, endless."""
    kinds: list[tuple[float, list[str], tuple[str, ...], Callable | None]] = []
    if options.wiki:
        pages = wikipedia(options.wiki)
        kinds += [(0.4, pages, DO, None), (0.25, pages, DO, passages)]
    if options.meetings:
        kinds.append((0.2, meetings(options.meetings), MEETING, None))
    if options.texts:
        kinds.append((0.15, [t for path in options.texts for t in texts(path)], DO, None))
    weights = [kind[0] for kind in kinds]
    while kinds:
        _, sources, tasks, several = chosen.choices(kinds, weights)[0]
        length = round(math.exp(chosen.uniform(math.log(SHORTEST), math.log(options.longest))))
        if several:
            document = several(chosen, sources, length)
        else:
            document = stretch(chosen, chosen.choice(sources), length)
        yield question(chosen, document, tasks)


def questions(options: argparse.Namespace) -> Iterator[str]:
    """All kinds mixed by --shares; a kind that is used up is left out."""
    chosen = random.Random(options.seed)
    sources = [
        documents(options, chosen),
        chats(options.chats, chosen),
        functions(options.code, chosen),
        facts(options, chosen),
        translations(options, chosen),
    ]
    shares = list(options.shares)
    while any(shares):
        place = chosen.choices(range(len(sources)), shares)[0]
        text = next(sources[place], None)
        if text is None:
            shares[place] = 0.0
        else:
            yield text


def tests_of(paths: list[str]) -> tuple[Overlap, set[tuple[str, ...]]]:
    """The word sequences of these files, and the texts that are shorter than such a sequence."""
    found = [text for record in read_records(paths) for text in texts_in(record.content)]
    short = {words_of(text) for text in found if len(text) < SHORT}
    return Overlap(found), short


def words_of(text: str) -> tuple[str, ...]:
    """Without case and punctuation."""
    return tuple(ANY_WORD.findall(text.lower()))


def main() -> None:
    """Write --count questions."""
    options = _options()
    tested, short = tests_of([str(path) for path in options.exclude])
    written = dropped = 0
    with gzip.open(options.out, "wt", encoding="utf-8") as out, tqdm(total=options.count) as bar:
        for text in questions(options):
            if tested.has(text) or words_of(text) in short:
                dropped += 1
                continue
            record = {"messages": [{"role": "user", "content": text}]}
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
            bar.update()
            written += 1
            if written == options.count:
                break
    print(f"{written} questions; {dropped} shared words with the tests")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wiki", type=Path, help="a Wikipedia dump, .gz")
    parser.add_argument("--meetings", type=Path, help="JSON lines in QMSum's layout")
    parser.add_argument("--texts", type=Path, nargs="*", default=[], help="files of records")
    parser.add_argument("--chats", type=Path, nargs="*", default=[], help="chats, JSON lines")
    parser.add_argument("--code", type=Path, nargs="*", default=[], help="folders of Python files")
    parser.add_argument(
        "--foreign", nargs="*", default=[], help="LANGUAGE=FILE with a sentence on each line"
    )
    parser.add_argument("--asked", type=Path, nargs="*", default=[], help="the target's answers")
    parser.add_argument(
        "--shares", type=float, nargs=5, default=(0.2, 0.4, 0.2, 0.1, 0.1),
        help="of documents, chats, code, facts, translations",
    )  # fmt: skip
    parser.add_argument("--longest", type=int, default=LONGEST, help="characters of a document")
    parser.add_argument("--exclude", type=Path, nargs="*", default=[], help="what is tested with")
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help=".jsonl.gz")
    return parser.parse_args()


if __name__ == "__main__":
    main()
