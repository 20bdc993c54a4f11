"""`graft doctor`: installed packages, hardware, and the command that installs what is missing."""

import json as json_module
import platform
import sys
from dataclasses import asdict
from importlib import import_module
from typing import Any

import typer

from graft.cli.failures import REFUSED, one_line
from graft.cli.options import JSON

PACKAGES = (
    "graftlm",
    "torch",
    "transformers",
    "numba",
    "numpy",
    "safetensors",
    "gguf",
    "huggingface_hub",
    "tokenizers",
    "bm25s",
    "html-to-markdown",
    "pypdfium2",
)
OPTIONAL = {
    "torchao": "--dtype int8",
    "pyarrow": "graft index and graft train of parquet files",
    "accelerate": "graft train on several GPUs",
}  # packages, and the commands that need them
GIGABYTE = 1e9
SMALL_DISK = 2 * GIGABYTE


def doctor(
    *,
    json: JSON = False,
) -> None:
    """Check packages and hardware. Exits with 1 if `graft run` cannot work."""
    report = examine()
    if json:
        print(json_module.dumps(report, indent=2))
    else:
        show(report)
    if report["problems"]:
        raise typer.Exit(REFUSED)


def examine() -> dict[str, Any]:
    """The report. It works without torch: a failed check becomes a problem."""
    from graft import machine
    from graft.home import home
    from graft.models.heads.installed import installed_heads

    problems: list[str] = []
    notes: list[str] = []
    cpu, memory = machine.cpu(), machine.memory()
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: package_version(name) for name in (*PACKAGES, *OPTIONAL)},
        "torch": torch_state(problems),
        "numba_threading": numba_state(problems),
        "cpu": asdict(cpu),
        "memory": asdict(memory),
        "home": {"path": str(home()), "free": machine.free_space(home())},
        "models": cached_models(problems, notes),
        "heads": [each.name for each in installed_heads()],
        "problems": problems,
        "notes": notes,
    }
    for name in PACKAGES[2:]:
        if report["packages"][name] is None and name != "numba":
            problems.append(f"{name} is not installed; type: pip install {name}")
    for name, use in OPTIONAL.items():
        if report["packages"][name] is None:
            notes.append(f"{use} needs {name}; type: pip install {name}")
    if report["torch"] and report["torch"]["gpus"] and package_version("triton") is None:
        notes.append("GPUs run far below their speed without triton; type: pip install triton")
    if report["home"]["free"] < SMALL_DISK:
        notes.append("little disk space for models; free some or set GRAFT_HOME to another disk")
    return report


def package_version(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def torch_state(problems: list[str]) -> dict[str, Any] | None:
    """Threads and GPUs of torch; None and a problem if torch cannot be imported."""
    torch = _imported("torch", problems)
    if torch is None:
        return None
    gpus = []
    if torch.cuda.is_available():
        found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        gpus = [{"name": each.name, "memory": each.total_memory} for each in found]
    return {"threads": torch.get_num_threads(), "cuda": torch.version.cuda, "gpus": gpus}


def numba_state(problems: list[str]) -> dict[str, Any] | None:
    """Threading layers of numba, best first; None and a problem if numba cannot be imported."""
    numba = _imported("numba", problems)
    if numba is None:
        return None
    layers = []
    for layer, module in (("tbb", "tbbpool"), ("omp", "omppool"), ("workqueue", "workqueue")):
        try:
            import_module(f"numba.np.ufunc.{module}")
        except ImportError:
            continue
        layers.append(layer)
    return {
        "chosen": numba.config.THREADING_LAYER,
        "available": layers,
        "threads": numba.config.NUMBA_NUM_THREADS,
    }


def _imported(name: str, problems: list[str]) -> Any | None:  # noqa: ANN401 (a module)
    try:
        return import_module(name)
    except Exception as error:  # a broken installation raises many types
        problems.append(
            f"{name} cannot be imported ({one_line(error)}); type: pip install --upgrade {name}"
        )
        return None


def cached_models(problems: list[str], notes: list[str]) -> list[dict[str, Any]]:
    """Models in the cache; a note if the default model is not there."""
    from graft.cli.models import listing

    try:
        rows = listing()["models"]
    except Exception as error:  # a missing package or an unreadable cache
        problems.append(f"the model cache cannot be read: {one_line(error)}")
        return []
    for name in (row["name"] for row in rows if row["default"] and not row["folder"]):
        notes.append(f"{name} is downloaded at first use, or now with: graft models --fetch {name}")
    return [row for row in rows if row["folder"]]


def show(report: dict[str, Any]) -> None:
    """Print the report as aligned lines, problems last."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines(report):
        table.add_row(name, value)
    console = Console(highlight=False, markup=False)
    console.print(table)
    for note in report["notes"]:
        console.print(f"note: {note}", soft_wrap=True)
    for problem in report["problems"]:
        console.print(f"problem: {problem}", style="red", soft_wrap=True)
    if not report["problems"]:
        console.print("no problems found", style="green")


def lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of the report: name and value."""
    cpu, memory, torch = report["cpu"], report["memory"], report["torch"]
    packages = [f"{name} {found or 'missing'}" for name, found in report["packages"].items()]
    rows = [
        ("python", f"{report['python']} on {report['platform']} ({sys.executable})"),
        ("packages", ", ".join(packages)),
        ("cpu", f"{cpu['name']}, {cpu['cores']} usable cores, {_list(cpu['features'])}"),
        ("memory", f"{_size(memory['total'])}, {_size(memory['available'])} available"),
    ]
    if torch:
        gpus = [f"{gpu['name']} ({_size(gpu['memory'])})" for gpu in torch["gpus"]]
        build = f"CUDA {torch['cuda']}" if torch["cuda"] else "without CUDA"
        rows.append(("torch", f"{build}, {torch['threads']} threads; GPU: {_list(gpus)}"))
    if numba := report["numba_threading"]:
        threads = f"{numba['threads']} threads, layers {_list(numba['available'])}"
        rows.append(("numba", f"{threads}, setting {numba['chosen']}"))
    rows.append(("home", f"{report['home']['path']}, {_size(report['home']['free'])} free"))
    models = [f"{row['name']} ({_size(row['bytes'])})" for row in report["models"]]
    rows += [("models", _list(models)), ("heads", _list(report["heads"]))]
    return rows


def _list(items: list[str]) -> str:
    return ", ".join(items) or "none"


def _size(count: int | None) -> str:
    return "unknown" if count is None else f"{count / GIGABYTE:.1f} GB"
