#!/usr/bin/env bash
# SPDX-License-Identifier: BSL-1.0
usage() {
    cat <<'TEXT'
usage: examples/run.sh                      the bank, with the transfers that come with it, then
                                            lease_demo: two workers and one lease, in real time
       examples/run.sh FILE                 the bank, with transfers of your own
       examples/run.sh redis                two processes and a key in a Redis server; one is killed.
                                            The server is started for that, and stopped again
       examples/run.sh web                  two web services, of cpp-httplib and of Boost.Beast: payments
                                            for one account come in turn, in one process and in two
       examples/run.sh NAME [ARGUMENT...]   the example of that name
       examples/run.sh all                  every example, one after another

Builds first. As root, installs what a bare Debian 12 lacks; otherwise prints the line
to run. The exit code is that of the example; `examples/run.sh bank --help` tells the file format.
TEXT
    echo
    echo "Names:" $(cd "$root/examples" && printf '%s\n' *.cpp | sed 's/\.cpp$//')
}

set -u -o pipefail
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
build=${AMUX_BUILD_ROOT:-$root/build}/examples
log=$build.log

case ${1:-} in
    -h | --help)
        usage
        exit 0
        ;;
    -*)
        usage >&2
        exit 2
        ;;
esac

name=${1:-}
if [[ -z $name || $name == all || $name == web || -f $root/examples/$name.cpp ]]; then
    shift $(($# > 0))
else
    name=bank # and the arguments are for it
fi

packages=(g++ cmake ninja-build libfmt-dev)
[[ ! $name =~ ^(redis|web$|payments_|all$) ]] || packages+=(libhiredis-dev redis-server)
[[ ! $name =~ ^(web$|payments_|all$) ]] || packages+=(curl pkg-config libcpp-httplib-dev libboost1.81-dev)
[[ $name != asio* && $name != all ]] || packages+=(libboost1.81-dev)
"$root/tests/support/install.sh" "${packages[@]}" || exit 2
mkdir -p "$build"
targets=("example_$name")
[[ $name != all ]] || targets=(all)
[[ -n $name ]] || targets=(example_bank example_lease_demo)
[[ $name != web ]] || targets=(example_payments_httplib example_payments_beast)
echo "building" >&2
if ! { cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DAMUX_BUILD_TESTS=OFF \
    -DAMUX_BUILD_EXAMPLES=ON && cmake --build "$build" --target "${targets[@]}"; } >"$log" 2>&1; then
    tail -n 40 "$log"
    exit 1
fi

if [[ -z $name ]]; then
    echo "== bank: coroutines move money, each under the locks of two accounts"
    "$build/examples/bank" || exit
    echo
    echo "== lease_demo: two workers share a lease, one of them freezes while it holds it"
    exec "$build/examples/lease_demo"
fi

if [[ $name == web ]]; then
    for service in payments_httplib payments_beast; do
        "$root/examples/web.sh" "$build/examples/$service" || exit
        echo
    done
    exit
fi

# command_of NAME [ARGUMENT...]: an example of Redis runs beside a server of its own, a service without a port with clients.
command_of() {
    command=("$build/examples/$1")
    [[ $1 != payments_* || $# -gt 1 ]] || command=("$root/examples/web.sh" "${command[@]}")
    [[ $1 != redis* ]] || command=("$root/examples/with_redis.sh" "${command[@]}")
}

if [[ $name != all ]]; then
    command_of "$name" "$@"
    exec "${command[@]}" "$@"
fi

passed=0
failed=0
for source in "$root"/examples/*.cpp; do
    name=$(basename "$source" .cpp)
    echo "== $name"
    command_of "$name"
    if timeout 60 "${command[@]}"; then
        passed=$((passed + 1))
    else
        echo "== $name failed"
        failed=$((failed + 1))
    fi
done
echo
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
