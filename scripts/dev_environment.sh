#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tool's own environment, made or checked by the interpreter named; `make` runs this, as it asks no Python to start.
# What that interpreter must be is scripts/environment.py's to judge, which needs one that can read it.
python=$1
program='import sys; print("python %d %d" % sys.version_info[:2])'

refuse() {
    printf 'error: %s\n  where: PYTHON=%s\n  next:  name a Python 3.10 to 3.13 with its venv module: make … PYTHON=/path/to/python3.11\n' \
        "$1" "$python" >&2
    exit 3
}

[ -n "$python" ] || refuse "no interpreter: neither python3.11 nor python3 is on PATH, and PYTHON names none"
command -v "$python" >/dev/null 2>&1 || refuse "\`$python\` is no program that can be run"
said=$("$python" -c "$program" 2>&1 </dev/null)
code=$?
case $said in
    "python 3 9" | "python 3 "[1-9][0-9]) ;;
    "python "*) refuse "\`$python\` is Python $(echo "${said#python }" | tr ' ' .), which the tool does not run on" ;;
    *) refuse "\`$python -c '$program'\` ended with $code and said: ${said:-nothing}" ;;
esac
"$python" -m scripts.environment dev >/dev/null || exit
touch build/venv/environment.stamp
