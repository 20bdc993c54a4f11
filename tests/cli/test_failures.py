import json
import os
import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "numba", "scipy"}


def test_interruption_is_one_line_and_130(cli, engine):
    engine.interruption = KeyboardInterrupt()
    done = cli("run", "How fast?")
    assert done.exit_code == 130
    assert done.stderr == "interrupted\n"
    assert engine.streams[0].closed


def test_internal_error_is_one_line_and_70(cli, engine):
    engine.interruption = ZeroDivisionError("two\nlines")
    done = cli("run", "How fast?")
    assert done.exit_code == 70
    assert done.stderr == (
        "internal error: ZeroDivisionError: two lines; set GRAFT_DEBUG=1 for the traceback\n"
    )


def test_internal_error_keeps_its_traceback_in_debug_mode(cli, engine, monkeypatch):
    monkeypatch.setenv("GRAFT_DEBUG", "1")
    engine.interruption = ZeroDivisionError("two")
    assert isinstance(cli("run", "How fast?").exception, ZeroDivisionError)


RUN_ALL = """
import contextlib, io, json, sys
from graft.cli.main import main
for line in sys.stdin:
    sys.argv[1:], status = json.loads(line), 0
    out, error = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            main()
        except SystemExit as ended:
            status = ended.code or 0
    texts = [each.buffer.getvalue().decode() for each in (out, error)]
    print(json.dumps([status, *texts, sorted(sys.modules)]))
"""


def run_all(*commands):
    """Exit code, stdout and stderr of each command, run in turn by one process, and the modules
    imported until then."""
    lines = "".join(json.dumps(words) + "\n" for words in commands)
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL], input=lines, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_help_imports_nothing_heavy():
    [(status, printed, _, modules)] = run_all(["--help"])
    assert status == 0
    assert "run" in printed
    assert not {*modules} & {*HEAVY, "numpy", "rich.console", "pydantic"}


REFUSED = (
    ("run ? --drafts auto", "No such option: --drafts"),
    ("run ? --draft magic", "unknown draft 'magic'"),
    ("run ? --draft store:nowhere", "nowhere is not a datastore"),
    ("run ? --verifier best", "unknown verifier 'best'"),
    ("run ? --dtype int3", "unknown dtype 'int3'"),
    (
        "run ? --kv-cache-dtype int4",
        "unknown dtype 'int4'; choose from auto, fp32, bf16, fp16, fp8",
    ),
    ("run ? --device gpu", "unknown device 'gpu'"),
    ("run ? --retriever magic", "unknown retriever 'magic'"),
    ("run ? --temperature -1", "temperature must be between 0 and 100"),
    ("run ? --head nowhere", "nowhere is not a draft head"),
    ("run ? --context-length much", "--context-length is a size such as 32k"),
    ("run ? --doc nowhere.txt", "nowhere.txt does not exist"),
    ("run ? --model no-such-model", "unknown model 'no-such-model'"),
    ("run ? --model ./nowhere", "./nowhere does not exist"),
    ("chat --draft magic", "unknown draft 'magic'"),
    ("chat --model no-such-model", "unknown model 'no-such-model'"),
    ("ask ? --corpus nowhere.jsonl", "nowhere.jsonl does not exist"),
    ("ask ? --corpus x --policy never", "unknown policy 'never'"),
    ("ask ? --corpus x --reuse some", "unknown reuse 'some'"),
    ("ask ? --corpus x --draft magic", "unknown draft 'magic'"),
    ("bench x.jsonl --draft plain,magic", "unknown draft 'magic'"),
    ("bench x.jsonl --dtype int3", "unknown dtype 'int3'"),
    ("serve no-such-model", "unknown model 'no-such-model'"),
    ("serve --draft magic", "unknown draft 'magic'"),
)


def test_refused_commands_do_not_import_torch():
    ran = run_all(*(arguments.split() for arguments, _ in REFUSED))
    for (arguments, message), (status, printed, said, modules) in zip(REFUSED, ran, strict=True):
        assert status in (1, 2), arguments
        assert printed == "", arguments
        assert message in said, arguments
        assert not {*modules} & HEAVY, arguments


@pytest.mark.skipif(os.name != "posix", reason="pipes behave differently elsewhere")
def test_closed_pipe_is_not_an_error():
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "graft", "models", "--json"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert done.returncode == 141
    assert done.stderr == ""


def test_version_is_printed(cli):
    done = cli("--version")
    assert done.exit_code == 0
    assert done.stdout.startswith("graft ")


@pytest.mark.parametrize("loaded", [True, False])
def test_reports_of_leaks_at_exit_are_hidden_if_triton_is_loaded(loaded):
    code = (
        "import atexit, os, sys; atexit.register(os.write, 2, b'leaked 514 functions');"
        f"sys.modules.update({{'triton.binding': os}} if {loaded} else {{}});"
        "sys.argv = ['graft', '--no-such-option']; from graft.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "No such option" in done.stderr
    assert ("leaked" in done.stderr) is not loaded
