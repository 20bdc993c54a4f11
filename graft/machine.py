"""Processor, memory and disk of this machine; imports nothing heavy."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# GNU OpenMP, numba's thread pool on Linux, lets threads spin for milliseconds at every barrier. If
# another process wants the cores, the spinning thread keeps the core from the very one it waits
# for: a step took seven times as long beside one busy process, 5 % longer with short spins.
SHORT_SPINS = ("GOMP_SPINCOUNT", "1000")
# Instruction sets that decide which dtype is fast, as /proc/cpuinfo and sysctl name them.
FEATURES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX-512 bf16",
    "amx_bf16": "AMX bf16",
    "asimd": "NEON",
    "asimdhp": "NEON fp16",
    "feat_fp16": "NEON fp16",
    "bf16": "Arm bf16",
    "feat_bf16": "Arm bf16",
    "sve": "SVE",
    "sme": "SME",
    "feat_sme": "SME",
}


@dataclass(frozen=True, slots=True)
class Cpu:
    """`cores` counts those this process may use; `features` only the ones that could be read."""

    name: str
    cores: int
    features: list[str]


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes; None where the system does not say."""

    total: int | None
    available: int | None


def cpu() -> Cpu:
    """The processor, with the instruction sets in FEATURES that it has."""
    text = _read("/proc/cpuinfo") if platform.system() == "Linux" else _sysctl()
    words = set(re.findall(r"[a-z0-9_]+", text.lower()))
    features = dict.fromkeys(label for flag, label in FEATURES.items() if flag in words)
    named = re.search(r"^(?:model name|machdep\.cpu\.brand_string)\s*:\s*(.+)$", text, re.M)
    # On Arm, Linux gives the processor's number alone; lscpu knows the names.
    named = named or re.search(r"^Model name\s*:\s*(.+)$", _output_of(["lscpu"]), re.M)
    name = named.group(1).strip() if named else platform.processor() or platform.machine()
    return Cpu(name, usable_cores(), list(features))


def memory() -> Memory:
    """Main memory of the machine."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        total = None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"), re.M)
    return Memory(total, int(found.group(1)) * 1024 if found else None)


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_space(folder: Path) -> int:
    """Free bytes of the disk on which `folder` is, or will be made."""
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    return shutil.disk_usage(existing).free


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _sysctl() -> str:
    """macOS's description of the processor, without the features it lacks."""
    found = _output_of(["sysctl", "machdep.cpu.brand_string", "hw.optional"])
    return "\n".join(line for line in found.splitlines() if not line.endswith(": 0"))


@cache
def has_triton() -> bool:
    """Whether Triton is installed, as it is with torch for CUDA."""
    return importlib.util.find_spec("triton") is not None


def _output_of(command: list[str]) -> str:
    """A command's output; empty where it is missing."""
    plain = {**os.environ, "LC_ALL": "C"}
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=False, env=plain
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout
