import gzip
import json
import re
import sqlite3

import pytest

from benchmarks.suites.spider import read
from graft.errors import InputError


def schema(name, **changes):
    row = {
        "db_id": name,
        "table_names_original": ["singer", "song list"],
        "column_names_original": [
            [-1, "*"], [0, "id"], [0, "Name"], [1, "id"], [1, "From"], [1, "ratings_(millions)"],
        ],
        "column_types": ["text", "number", "text", "number", "time", "others"],
        "primary_keys": [1, 3],
        "foreign_keys": [[3, 1]],
    }  # fmt: skip
    return row | changes


@pytest.fixture
def folder(tmp_path):
    asked = [{"db_id": f"db{i % 4}", "question": f"How many {i}?"} for i in range(10)]
    content = json.dumps([*asked, asked[2]]).encode()
    (tmp_path / "dev.json.gz").write_bytes(gzip.compress(content))
    (tmp_path / "tables.json").write_text(json.dumps([schema(f"db{i}") for i in range(5)]))
    return tmp_path


def sql_of(prompt):
    return re.search(r"```sql\n(.*)\n```", prompt.content[0]["content"], re.S)[1]


def test_a_database_is_in_one_half_only(folder):
    prompts = read(folder)
    assert [prompt.number for prompt in prompts] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    odd = [re.search(r"How many (\d)", p.content[0]["content"])[1] for p in prompts if p.number % 2]
    assert odd == ["0", "2", "4", "6", "8"]  # of db0 and db2
    assert {prompt.category for prompt in prompts} == {"sql"}


def test_the_schema_is_sql_with_types_and_keys(folder):
    made = sql_of(read(folder)[0])
    assert made == (
        "CREATE TABLE singer (\n  id NUMERIC,\n  Name TEXT,\n  PRIMARY KEY (id)\n);\n\n"
        'CREATE TABLE "song list" (\n  id NUMERIC,\n  "From" DATETIME,\n'
        '  "ratings_(millions)" BLOB,\n  PRIMARY KEY (id),\n'
        "  FOREIGN KEY (id) REFERENCES singer (id)\n);"
    )
    sqlite3.connect(":memory:").executescript(made)


@pytest.mark.parametrize("keys", [[3, 4], [[3, 4]]])
def test_a_key_of_several_columns_is_one_key(folder, keys):
    rows = [schema(f"db{i}", primary_keys=keys) for i in range(4)]
    (folder / "tables.json").write_text(json.dumps(rows))
    made = sql_of(read(folder)[0])
    assert 'PRIMARY KEY (id, "From")' in made
    sqlite3.connect(":memory:").executescript(made)


def test_the_questions_file_finds_the_schemas_beside_it(folder):
    assert read(folder / "dev.json.gz") == read(folder)


def test_missing_files_are_an_error(folder):
    (folder / "tables.json").write_text(json.dumps([schema("db0")]))
    with pytest.raises(InputError, match="'db1', which tables.json beside it lacks"):
        read(folder)
    (folder / "tables.json").write_text(json.dumps([schema("db0", column_types=["text"])]))
    with pytest.raises(InputError, match="tables.json, entry 1 is not a Spider schema"):
        read(folder)
    (folder / "tables.json").unlink()
    with pytest.raises(InputError, match="cannot be read; --data is the folder with tables.json"):
        read(folder)
    with pytest.raises(InputError, match="needs --data: the folder with Spider's dev.json"):
        read(None)
