#!/usr/bin/env bash
# SPDX-License-Identifier: BSL-1.0
# usage: with_redis.sh COMMAND [ARGUMENT...]
#
# Runs a command beside a Redis server of its own, on a free port of loopback, without persistence.
# Its address is in AMUX_REDIS_URL. However the command ends, the server is stopped and its files
# are gone. The exit code is the command's; 77 when there is no redis-server.
set -u -o pipefail
for tool in redis-server redis-cli; do
    command -v $tool >/dev/null || { echo "no $tool (Debian package: redis-server)" >&2; exit 77; }
done

folder=$(mktemp -d) || exit 1
server=
stop() {
    [[ -z $server ]] || { kill "$server" && wait "$server"; } 2>/dev/null
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Whoever answers on the port may be another server: ours has our child's number.
is_ours() { redis-cli -p "$port" INFO server 2>/dev/null | grep -q "^process_id:$server"$'\r'; }

# setpriv: it goes with this script also when that is killed.
for attempt in {1..20}; do
    port=$((12000 + RANDOM % 8000)) # the tests have those above
    setpriv --pdeathsig TERM redis-server --port $port --bind 127.0.0.1 --dir "$folder" \
        --save '' --appendonly no --daemonize no --logfile "$folder/log" &
    server=$!
    until is_ours; do
        kill -0 "$server" 2>/dev/null || continue 2
        sleep 0.05
    done
    echo "redis-server: process $server on port $port" >&2
    AMUX_REDIS_URL=redis://127.0.0.1:$port "$@"
    result=$?
    stop
    server=
    echo "redis-server: stopped" >&2
    exit $result
done
echo "redis-server does not start:" >&2
cat "$folder/log" >&2
exit 1
