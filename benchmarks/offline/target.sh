#!/usr/bin/env bash
# On the machine without a network, in the root of the project:
#   target.sh add PIECE...          append pieces that pack.py cut, in order, to files in $PARTS
#   target.sh unpack NAME FOLDER    $PARTS/NAME.tar.xz into FOLDER
#   target.sh follow MANIFEST FOLDER   wait for what pack.py listed; unpack each into FOLDER/NAME when it is complete,
#                                   and make FOLDER/NAME.complete
#   target.sh project FOLDER        the package to FOLDER, with what plug-ins are found by
set -euo pipefail
parts=${PARTS:-$HOME/parts}
command=${1:-help}; shift || true
case $command in
add)
  mkdir -p "$parts"
  for piece in "$@"; do
    name=$(basename "${piece%.*}")
    if [[ $piece == *.00 ]]; then cp "$piece" "$parts/$name"; else cat "$piece" >> "$parts/$name"; fi
    stat -c '%n %s' "$parts/$name"
  done ;;
unpack)
  mkdir -p "$2"
  xz -dc -T0 "$parts/$1.tar.xz" | tar x -C "$2" ;;
follow)
  mkdir -p "$2"
  while read -r name size; do
    {
      until [[ $(stat -c %s "$parts/$name" 2> /dev/null) == "$size" ]]; do sleep 0.2; done
      [[ $name != *.tar.xz ]] || bash "$0" unpack "${name%.tar.xz}" "$2/${name%.tar.xz}"
      touch "$2/$name.complete"
    } &
  done < "$1"
  wait ;;
project)
  rm -rf "$1"
  mkdir -p "$1"
  cp -r graft benchmarks pyproject.toml "$1"
  python3 - "$1" <<'PYTHON'
import sys, tomllib
from pathlib import Path

folder = Path(sys.argv[1])
project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
about = folder / f"{project['name']}-{project['version']}.dist-info"
about.mkdir()
lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
         for group, entries in project["entry-points"].items()]
(about / "entry_points.txt").write_text("\n".join(lines))
(about / "METADATA").write_text(
    f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
PYTHON
  ;;
*)
  sed -n '2,7s/^# *//p' "$0"
  exit 2 ;;
esac
