import json

import pytest
from made_up_answers import HEADER, answer

from graft.bench.records import Asked, open_results, output_hash, read_results
from graft.errors import InputError


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "results.jsonl"
    with open_results(path) as (_, writer):
        writer.header(HEADER)
        writer.worker(["plain", "auto"], {"versions": {"graft": "1"}, "settings": {}})
        writer.answer(answer(output=output_hash([[1, 2]])), [[1, 2]])
    return path


def test_what_is_written_is_read(file):
    results = read_results(file)
    assert results.sessions == [{"format": 1, **HEADER}]
    assert results.workers["auto"]["versions"] == {"graft": "1"}
    assert list(results.answers.values()) == [answer(output=output_hash([[1, 2]]))]
    assert results.token_ids == {output_hash([[1, 2]]): [[1, 2]]}


def test_prompts_are_kept_token_by_token(file):
    asked = Asked("rag", [0, 5, 151_935, 7])
    with open_results(file) as (_, writer):
        writer.prompt(3, 1024, asked)
    assert read_results(file).prompts == {(3, 1024): asked}


def test_a_damaged_prompt_is_refused_by_its_line(file):
    with open_results(file) as (_, writer):
        writer.prompt(3, 1024, Asked("rag", [0, 5]))
    file.write_text(file.read_text().replace('"tokens":"', '"tokens":"AAAA'))
    with pytest.raises(InputError, match="line 4"):
        read_results(file)


def test_a_file_written_before_sources_of_drafts_were_told_is_read(file):
    with open_results(file) as (_, writer):
        writer.answer(answer(system="auto", drafted=30, drafted_by_source={"prompt": 30}))
    assert '"drafted_by_source":{"prompt":30}' in file.read_text()
    file.write_text(file.read_text().replace('"drafted_by_source":{"prompt":30},', ""))
    assert [each.drafted_by_source for each in read_results(file).answers.values()] == [None, None]


def test_a_file_written_before_contexts_is_read_and_its_answers_stand_apart(file):
    with open_results(file) as (_, writer):
        writer.answer(answer(context=1024))
    file.write_text(file.read_text().replace('"context":0,', ""))
    results = read_results(file)
    assert [each.context for each in results.answers.values()] == [0, 1024]
    assert results.done() == {answer().key, answer(context=1024).key}


def test_equal_answers_store_their_tokens_once_also_in_a_later_session(file):
    with open_results(file) as (_, writer):
        writer.answer(answer(system="auto", output=output_hash([[1, 2]])), [[1, 2]])
        writer.answer(answer(system="pld", output=output_hash([[1, 3]])), [[1, 3]])
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row.get("token_ids") for row in rows if row["record"] == "answer"] == [
        [[1, 2]], None, [[1, 3]],
    ]  # fmt: skip


def test_half_a_line_is_cut_off_when_a_run_goes_on(file):
    whole = file.read_text()
    with file.open("a") as opened:
        opened.write('{"record":"answer","suite":"s","ques')
    assert len(read_results(file).answers) == 1
    with open_results(file) as (results, writer):
        assert len(results.answers) == 1
        writer.answer(answer(system="auto"))
    assert file.read_text().startswith(whole)
    assert len(read_results(file).answers) == 2


def test_a_failed_measurement_is_to_be_made_again_and_the_last_one_counts(file):
    with open_results(file) as (_, writer):
        writer.answer(answer(system="auto", error="out of memory"))
    failed = read_results(file)
    assert len(failed.answers) == 2
    assert failed.done() == {answer().key}
    with open_results(file) as (_, writer):
        writer.answer(answer(system="auto"))
    assert len(read_results(file).done()) == 2


def test_two_runs_cannot_write_to_one_file(file):
    with open_results(file), pytest.raises(InputError, match="another run is writing"):
        with open_results(file):
            pass


@pytest.mark.parametrize("line", ["not json", "{}", '{"record":"answer"}', '{"record":"other"}'])
def test_a_line_of_something_else_is_named(file, line):
    with file.open("a") as opened:
        opened.write(line + "\n")
    with pytest.raises(InputError, match="results.jsonl, line 4 was not written by this version"):
        read_results(file)


def test_nothing_written_leaves_no_file(tmp_path):
    with open_results(tmp_path / "results.jsonl"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(InputError, match="cannot be written"), open_results(tmp_path):
        pass
    with pytest.raises(InputError, match="cannot be read"):
        read_results(tmp_path)
