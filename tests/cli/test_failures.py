import os
import subprocess
import sys

import pytest


def test_interruption_is_one_line_and_130(cli, engine):
    engine.interruption = KeyboardInterrupt()
    done = cli("run", "How fast?")
    assert done.exit_code == 130
    assert done.stderr == "interrupted\n"
    assert engine.streams[0].closed


def test_a_bug_is_one_line_and_70(cli, engine):
    engine.interruption = ZeroDivisionError("two\nlines")
    done = cli("run", "How fast?")
    assert done.exit_code == 70
    assert done.stderr == (
        "internal error: ZeroDivisionError: two lines; set GRAFT_DEBUG=1 for the traceback\n"
    )


def test_a_bug_keeps_its_traceback_in_debug_mode(cli, engine, monkeypatch):
    monkeypatch.setenv("GRAFT_DEBUG", "1")
    engine.interruption = ZeroDivisionError("two")
    assert isinstance(cli("run", "How fast?").exception, ZeroDivisionError)


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from graft.cli.main import main\n"
        "sys.argv = ['graft', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    heavy = {'torch', 'transformers', 'numba', 'numpy', 'rich.console', 'pydantic'}\n"
        "    sys.exit(f'imported {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "run" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="pipes behave differently elsewhere")
def test_a_reader_that_goes_away_is_not_an_error():
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
