#!/usr/bin/env bash
# SPDX-License-Identifier: BSL-1.0
# Without this file nobody knows what the bank example does with a file that is not as it should be.
# usage: bank_refuses.sh BANK
set -u
bank=$1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0

# expect CODE TEXT ARGUMENT...: bank with these arguments exits with CODE and says TEXT.
expect() {
    local code=$1 text=$2 output
    shift 2
    output=$("$bank" "$@" 2>&1 </dev/null)
    local got=$?
    if [[ $got != "$code" || $output != *"$text"* ]]; then
        printf 'bank %s: wanted %s and "%s", got %s and:\n%s\n' "$*" "$code" "$text" "$got" "$output"
        failed=1
    fi
}

printf '%s\n' time,from,to,amount 1,ann,bob,500 2,ann,bob 3,bob,ann,-5 4,bob,cy,70 >"$dir/some.csv"
expect 0 "$dir/some.csv:3: too few fields: 3 instead of 4" "$dir/some.csv"
expect 0 "$dir/some.csv:4: the amount is negative: '-5'" "$dir/some.csv"
expect 0 "2 transfers, 2 lines skipped" "$dir/some.csv"

head -c 100000 /dev/urandom >"$dir/noise.csv"
expect 2 "there is no transfer in $dir/noise.csv" "$dir/noise.csv"
: >"$dir/empty.csv"
expect 2 "there is no transfer in $dir/empty.csv" "$dir/empty.csv"
expect 2 "cannot read $dir/none.csv: No such file or directory" "$dir/none.csv"
expect 2 "cannot read $dir: Is a directory" "$dir"
expect 2 "usage: bank [FILE]" a.csv b.csv
expect 2 "usage: bank [FILE]" --fast
expect 0 "usage: bank [FILE]" --help
exit $failed
