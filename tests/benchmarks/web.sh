#!/usr/bin/env bash
# SPDX-License-Identifier: BSL-1.0
# usage: web.sh WEB_SERVER [CONNECTIONS] [SECONDS]
#
# Puts web_server under the load of wrk (Debian package: wrk): requests per second without a lock, with a lock of a thousand
# accounts, and with one account for all. Fails when the server has counted wrong, or has leases left.
set -u -o pipefail
server=$1 connections=${2:-1000} seconds=${3:-10}
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cat >"$folder/many.lua" <<'LUA'
request = function() return wrk.format("POST", "/pay?account=" .. math.random(0, 999), nil, "x") end
LUA
cat >"$folder/one.lua" <<'LUA'
request = function() return wrk.format("POST", "/pay?account=7", nil, "x") end
LUA
cat >"$folder/free.lua" <<'LUA'
request = function() return wrk.format("POST", "/free", nil, "x") end
LUA
result=0
for library in beast httplib; do
    port=$((20000 + RANDOM % 12000))
    "$server" $library $port &
    process=$!
    sleep 1
    for load in free many one; do
        told=$(wrk -t1 -c"$connections" -d"$seconds"s --timeout 60s -s "$folder/$load.lua" "http://127.0.0.1:$port")
        echo "$library $load: $(grep -E 'Requests/sec|requests in|Socket errors|Non-2xx' <<<"$told" | tr -s ' \n' ' ')"
    done
    sleep 1
    kill $process
    wait $process || result=1
done
exit $result
