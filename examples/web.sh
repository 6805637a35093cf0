#!/usr/bin/env bash
# SPDX-License-Identifier: BSL-1.0
# usage: web.sh SERVICE
#
# Shows what a payments service does, and checks it: posts in parallel to one process of it with its locks in memory, then
# to two processes with their locks in a Redis server that is started for that. Stops what it has started. The exit code
# is 0 when nobody was handled beside another one for the same account; 77 when there is no curl or no redis-server.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [[ $1 != --on-redis ]]; then
    for tool in curl redis-server; do
        command -v $tool >/dev/null || { echo "no $tool (Debian package: $tool)" >&2; exit 77; }
    done
fi

folder=$(mktemp -d) || exit 1
services=()
stop_services() {
    local p result=0
    ((${#services[@]} == 0)) || kill "${services[@]}" 2>/dev/null
    for p in ${services[@]+"${services[@]}"}; do wait "$p" || result=1; done
    services=()
    return $result
}
trap 'stop_services; rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start SERVICE [URL]: its port is added to `ports`.
start() {
    local told=$folder/told.${#services[@]}
    : >"$told"
    setpriv --pdeathsig TERM "$1" 0 ${2:+"$2"} >>"$folder/desk" 2>"$told" &
    services+=($!)
    for _ in {1..200}; do
        grep -q listening "$told" && break
        sleep 0.05
    done
    ports+=("$(sed -n 's/^listening on port //p' "$told")")
    [[ -n ${ports[-1]} ]] || { cat "$told" >&2; exit 1; }
}

# post PORT PATH ACCOUNT: one line about the answer.
post() {
    local text
    text=$(curl -s -m 60 -d "account=$3" -w '\n%{http_code} after %{time_total} s' "http://127.0.0.1:$1$2")
    echo "  POST $2 for account '$3': ${text##*$'\n'}: ${text%%$'\n'*}"
}

# Six posts at a time, to all ports in turn.
post_all() {
    local n posts=() port
    for n in {0..5}; do
        port=${ports[n % ${#ports[@]}]}
        post "$port" /payments $((n < 4 ? 7 : 8)) &
        posts+=($!)
    done
    for n in "${posts[@]}"; do wait "$n"; done
    post "${ports[0]}" /payments 7 &
    posts=($!)
    sleep 0.02
    post "${ports[-1]}" /payments/now 7
    post "${ports[-1]}" /payments ''
    wait "${posts[0]}"
}

# Whoever begins for an account ends before the next one begins; all have been paid.
check() {
    cat "$folder/desk"
    awk -v wanted="$1" '
        $5 == "begins" { if (open[$4]++) { print "two at a time for account " $4; bad = 1 } }
        $5 == "ends" { open[$4]--; paid++ }
        END {
            if (paid < wanted) { print "only " paid " were paid"; bad = 1 }
            exit bad
        }' "$folder/desk"
}

ports=()
if [[ $1 == --on-redis ]]; then
    echo "== two processes of $(basename "$2"), locks in Redis"
    start "$2" "$AMUX_REDIS_URL"
    start "$2" "$AMUX_REDIS_URL"
    post_all
    post "${ports[0]}" /payments 9 &
    last=$!
    for _ in {1..400}; do
        grep -q ' 9 begins' "$folder/desk" && break
        sleep 0.01
    done
    stop_services || exit 1 # in the middle of it: who works finishes
    wait "$last"
    left=$(redis-cli -u "$AMUX_REDIS_URL" --scan --pattern '*payments:*')
    [[ -z $left ]] || { echo "left in Redis: $left"; exit 1; }
    check 8
    exit
fi
echo "== one process of $(basename "$1"), locks in memory"
start "$1"
post_all
stop_services && check 7 || exit 1
echo
exec "$here/with_redis.sh" "$0" --on-redis "$1"
