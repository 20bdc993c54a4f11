"""Runs one program under limits; started by `code.py` with `python -I guarded.py PROGRAM`.

It reads a token from stdin and writes it to stdout if the program reaches its end. Prints of the
program do not reach stdout, and an early exit writes nothing. Standard library only.
"""

import os
import resource
import sys

MEMORY = 2 << 30  # bytes
FILE = 1 << 20
SECONDS = 10  # of processor time; the caller's clock is stricter
REFUSED = (
    "ctypes.", "ftplib.", "os.chmod", "os.chown", "os.exec", "os.fork", "os.kill", "os.link",
    "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.symlink", "os.system",
    "os.truncate", "pty.", "shutil.", "smtplib.", "socket.", "subprocess.", "urllib.",
)  # fmt: skip


def main() -> None:
    """Limit this process, then run the program in it."""
    word = sys.stdin.read()
    speak = os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    with open(sys.argv[1], encoding="utf-8") as file:
        source = file.read()
    _limit()
    try:
        exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
    except BaseException:  # whatever ends it early, sys.exit too
        os._exit(1)
    os.write(speak, word.encode())
    os._exit(0)


def _limit() -> None:
    """No network, little memory and time, small files, nothing that reaches beyond the process."""
    try:
        os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
    except (AttributeError, OSError):  # before Python 3.12, not Linux, or not allowed
        pass
    for kind, limit in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_FSIZE, FILE),
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            resource.setrlimit(kind, (limit, limit))
        except (ValueError, OSError):  # macOS knows no limit of memory
            pass
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event.startswith(REFUSED) or (event == "open" and _writes_elsewhere(*arguments)):
        raise PermissionError(f"a measured program may not do this: {event}")


def _writes_elsewhere(path: object, mode: str | None, flags: int) -> bool:
    """Whether a file outside the program's own folder is opened for writing."""
    writes = set(mode or "") & set("wax+") or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if not writes or isinstance(path, int):
        return False
    return not os.path.realpath(os.fspath(path)).startswith(os.getcwd() + os.sep)


if __name__ == "__main__":
    main()
