"""Spider (Yu et al. 2018), questions of the development set: SQL from a schema and a question.

A prompt holds the whole schema of the question's database as CREATE TABLE statements. All questions
of a database fall into one half, so nothing is tuned on a schema that is reported on. Spider's own
measures need its parser and databases; here a query is right if it equals the set's, written alike.
"""

import re
from pathlib import Path
from typing import Any

from benchmarks.suites.source import Source, text
from benchmarks.suites.task import Gold, Prompt, chat, numbers_by_group
from graft.errors import InputError

QUESTIONS = Source(
    suite="spider",
    owner="Spider",
    names=("dev.json",),
    row="a Spider question (db_id, question)",
)
TABLES = Source(
    suite="spider",
    owner="Spider",
    names=("tables.json",),
    row="a Spider schema (db_id, table_names_original, column_names_original, ...)",
)
TYPES = {
    "text": "TEXT",
    "number": "NUMERIC",
    "time": "DATETIME",
    "boolean": "BOOLEAN",
    "others": "BLOB",
}
PLAIN_NAME = re.compile(r"(?!(from|group|order|select|table|where)$)[a-z_]\w*", re.IGNORECASE)


def read(data: Path | None) -> list[Prompt]:
    """The questions in the file's order, each once; tables.json lies beside them."""
    item: dict[tuple[str, str], Gold | None] = {}
    for question, gold in QUESTIONS.entries(data, _items):
        item.setdefault(question, gold)
    file = QUESTIONS.find(data)
    schemas = dict(TABLES.entries(file.parent, _schema))
    numbers = numbers_by_group(database for database, _ in item)
    prompts = []
    for number, ((database, question), gold) in zip(numbers, item.items(), strict=True):
        if database not in schemas:
            raise InputError(
                f"{file} asks about the database {database!r}, which tables.json beside it lacks; "
                "take both from one release"
            )
        content = chat(_question(question, schemas[database]))
        prompts.append(Prompt(number, "sql", content, gold=gold))
    return prompts


def _items(row: dict[str, Any]) -> tuple[tuple[str, str], Gold | None]:
    gold = Gold("sql", (text(row, "query"),)) if row.get("query") else None
    return (text(row, "db_id"), text(row, "question")), gold


def _question(question: str, schema: str) -> str:
    return (
        f"A database has these tables:\n\n```sql\n{schema}\n```\n\nQuestion: {question.strip()}"
        "\n\nWrite one SQL query that answers it, in a code block, then explain the query in one "
        "sentence."
    )


def _schema(row: dict[str, Any]) -> tuple[str, str]:
    """A database's name and its tables as SQL."""
    names = [_quoted(name) for name in row["table_names_original"]]
    columns = [(table, _quoted(name)) for table, name in row["column_names_original"]]
    tables: list[list[str]] = [[] for _ in names]
    for (table, name), kind in zip(columns, row["column_types"], strict=True):
        if table >= 0:  # column 0 is "*", of no table
            tables[table].append(f"{name} {TYPES[kind]}")
    for table, keys in _primary_keys(row["primary_keys"], columns).items():
        tables[table].append(f"PRIMARY KEY ({', '.join(keys)})")
    for here, there in row["foreign_keys"]:
        (table, name), (other, key) = columns[here], columns[there]
        tables[table].append(f"FOREIGN KEY ({name}) REFERENCES {names[other]} ({key})")
    made = [_created(name, lines) for name, lines in zip(names, tables, strict=True)]
    return text(row, "db_id"), "\n\n".join(made)


def _primary_keys(keys: list[Any], columns: list[tuple[int, str]]) -> dict[int, list[str]]:
    """By table; later releases write a key of several columns as a list."""
    found: dict[int, list[str]] = {}
    for key in keys:
        for column in key if isinstance(key, list) else [key]:
            table, name = columns[column]
            found.setdefault(table, []).append(name)
    return found


def _created(name: str, lines: list[str]) -> str:
    inside = ",\n  ".join(lines)
    return f"CREATE TABLE {name} (\n  {inside}\n);"


def _quoted(name: str) -> str:
    return name if PLAIN_NAME.fullmatch(name) else f'"{name}"'
