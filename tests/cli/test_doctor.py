import json
import os
import sys

from graft import machine
from graft.cli import doctor


def test_report_covers_software_and_hardware(cli):
    done = cli("doctor", "--json")
    report = json.loads(done.stdout)
    assert report["packages"]["torch"]
    assert report["cpu"]["cores"] >= 1
    assert report["memory"]["total"] > 1e8
    assert report["home"]["path"] == os.environ["GRAFT_HOME"]
    assert report["home"]["free"] > 0
    assert report["problems"] == []
    assert any("graft models --fetch" in note for note in report["notes"])
    assert done.exit_code == 0


def test_a_torch_that_cannot_be_imported_is_a_problem_with_a_remedy(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = cli("doctor")
    assert done.exit_code == 1
    assert "torch cannot be imported" in done.stdout
    assert "pip install" in done.stdout


def test_a_gpu_without_triton_is_noted(cli, monkeypatch):
    state = {"threads": 1, "cuda": "13.0", "gpus": [{"name": "H200", "memory": 1 << 37}]}
    monkeypatch.setattr(doctor, "torch_state", lambda problems: state)
    assert "pip install triton" not in " ".join(json.loads(cli("doctor", "--json").stdout)["notes"])
    monkeypatch.setattr(doctor, "package_version", lambda name: None if name == "triton" else "1")
    assert "pip install triton" in " ".join(json.loads(cli("doctor", "--json").stdout)["notes"])


def test_packages_that_are_not_there_have_no_version():
    assert doctor.package_version("no-such-distribution") is None


def test_instruction_sets_are_read_by_name(monkeypatch):
    text = "model name : Xeon\nflags : fpu avx2 avx512f avx512_bf16 amx_bf16\n"
    monkeypatch.setattr(machine.platform, "system", lambda: "Linux")
    monkeypatch.setattr(machine, "_read", lambda path: text)
    cpu = machine.cpu()
    assert cpu.name == "Xeon"
    assert cpu.features == ["AVX2", "AVX-512", "AVX-512 bf16", "AMX bf16"]
