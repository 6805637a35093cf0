#!/usr/bin/env bash
# SPDX-License-Identifier: BSL-1.0
# usage: examples/run.sh [NAME...]
#
# Builds the examples and runs them (or the named ones), printing what they print. As root,
# installs what a bare Debian 12 lacks; otherwise prints the line to run.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
build=${AMUX_BUILD_ROOT:-$PWD/build}/examples
log=$build.log
tests/support/install.sh g++ cmake ninja-build libfmt-dev || exit 2

mkdir -p "$build"
if ! { cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DAMUX_BUILD_TESTS=OFF \
    -DAMUX_BUILD_EXAMPLES=ON && cmake --build "$build"; } >"$log" 2>&1; then
    tail -n 40 "$log"
    exit 1
fi

passed=0
failed=0
for source in examples/*.cpp; do
    name=$(basename "$source" .cpp)
    [[ $# == 0 || " $* " == *" $name "* ]] || continue
    echo "== $name"
    if timeout 60 "$build/examples/$name"; then
        passed=$((passed + 1))
    else
        echo "== $name failed"
        failed=$((failed + 1))
    fi
done
echo
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
