#!/usr/bin/env bash
# SPDX-License-Identifier: BSL-1.0
# Uses amux in the ways in which users do: subdirectory, FetchContent, installed package, Debian
# package, pkg-config, one header. Ends with "N passed, N failed".
set -u -o pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/tests/consumer
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

report() {
    local name=$1 code=$2 output=$3
    if ((code == 0)); then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        printf '%s\n' "$output" | tail -n 30 | sed 's/^/    /'
    fi
}

# must NAME COMMAND...: the command succeeds.
must() {
    local name=$1 output
    shift
    output=$("$@" 2>&1 </dev/null)
    report "$name" $? "$output"
}

# must_say NAME REGEX COMMAND...: the command fails, and says so in these words.
must_say() {
    local name=$1 regex=$2 output
    shift 2
    if output=$("$@" 2>&1 </dev/null); then
        report "$name" 1 "succeeded: $output"
    else
        printf '%s\n' "$output" | tr -s ' \n' ' ' | grep -qE "$regex"
        report "$name" $? "$output"
    fi
}

# project BUILD_DIR CMAKE_ARGS...: configures, builds and runs the consumer.
project() {
    local build=$work/$1
    shift
    cmake -S "$here" -B "$build" -G Ninja -DAMUX="$root" "$@" &&
        cmake --build "$build" && "$build/consumer"
}

own_build() {
    cmake -S "$root" -B "$work/own" -G Ninja -DAMUX_BUILD_TESTS=OFF -DAMUX_BUILD_EXAMPLES=OFF \
        -DCMAKE_INSTALL_PREFIX="$work/first" &&
        cmake --build "$work/own" --target all_verify_interface_header_sets
}

# An installation is moved before it is used: no path may have been written into it.
install_and_move() {
    cmake --install "$work/own" && mv "$work/first" "$work/installed"
}

# with_pkg_config ARGUMENTS...: what g++ is given besides the flags of amux.
with_pkg_config() {
    export PKG_CONFIG_PATH=$work/installed/share/pkgconfig
    local flags
    flags=$(pkg-config --cflags --libs "amux >= 0.1") &&
        g++ -std=c++20 -Wall -Wextra -Werror $flags "$@" -o "$work/plain" && "$work/plain"
}

debian_package() {
    (cd "$work/own" && cpack -G DEB) && dpkg-deb -x "$work"/own/libamux-dev_*_all.deb "$work/deb"
}

# one_header COMPILER: the same program over a single header.
one_header() {
    local file
    mkdir -p "$work/one" && "$here/single_header.py" >"$work/one/amux.hpp" || return
    for file in use.hpp main.cpp other.cpp; do
        sed 's|#include <amux/.*>|#include "amux.hpp"|' "$here/$file" >"$work/one/$file"
    done
    "$1" -std=c++20 -Wall -Wextra -Wconversion -Wshadow -Werror "$work"/one/{main,other}.cpp -pthread \
        -o "$work/one/program" && "$work/one/program"
}

# web_project NAME: the project of docs/web.md as it stands there, built, started, and asked.
web_project() {
    local build=$work/$1 port=$((20000 + RANDOM % 12000)) service reply=
    cmake -S "$here/$1" -B "$build" -G Ninja -DCMAKE_PREFIX_PATH="$work/installed" &&
        cmake --build "$build" || return
    "$build/payments" $port &
    service=$!
    for _ in {1..100}; do
        { exec 3<>/dev/tcp/127.0.0.1/$port; } 2>/dev/null && break
        sleep 0.1
    done
    printf '%s\r\n' 'POST /payments HTTP/1.1' 'Host: here' 'Connection: close' 'Content-Length: 9' \
        'Content-Type: application/x-www-form-urlencoded' '' >&3
    printf 'account=7' >&3
    reply=$(timeout 20 cat <&3)
    exec 3>&-
    kill $service
    echo "$reply"
    [[ $reply == *" 200 OK"*"paid"* ]]
}

# pasted PAGE: its whole program, built and run as it says there.
pasted() {
    local with=()
    [[ $1 != *redis* ]] || with=("$root/examples/with_redis.sh")
    PKG_CONFIG_PATH=$work/installed/share/pkgconfig ${with[@]+"${with[@]}"} "$here/pasted.py" "$1"
}

# With the option the program is there, and works after a move; without it nothing is but headers.
amuxctl_installed() {
    cmake -S "$root" -B "$work/ctl" -G Ninja -DAMUX_BUILD_TESTS=OFF -DAMUX_BUILD_EXAMPLES=OFF \
        -DAMUX_INSTALL_AMUXCTL=ON -DCMAKE_INSTALL_PREFIX="$work/ctl_first" &&
        cmake --build "$work/ctl" && cmake --install "$work/ctl" && mv "$work/ctl_first" "$work/ctl_moved" &&
        "$work/ctl_moved/bin/amuxctl" --version && [[ ! -e $work/installed/bin ]]
}

# Headers that are used but were left out of CMakeLists.txt are missing from the installation.
same_headers() {
    diff -r "$root/include" "$work/installed/include"
}

# Nothing is found but a Catch2 that is too old, and nothing may be downloaded.
tests_with_old_catch2() {
    local old=$work/old_catch2/lib/cmake/Catch2
    mkdir -p "$old"
    : >"$old/Catch2Config.cmake"
    echo 'set(PACKAGE_VERSION 2.13.9)' >"$old/Catch2ConfigVersion.cmake"
    printf 'set(CMAKE_FIND_USE_%s OFF)\n' CMAKE_SYSTEM_PATH SYSTEM_ENVIRONMENT_PATH >"$work/only"
    cmake -S "$root" -B "$work/old" -G Ninja -DAMUX_BUILD_EXAMPLES=OFF \
        -DCMAKE_PREFIX_PATH="$work/old_catch2" -DCMAKE_PROJECT_amux_INCLUDE="$work/only" && return
    local code=$?
    [[ ! -e $work/old/_deps ]] || echo "it was downloaded"
    return $code
}

no_fmt=-DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON
no_hiredis="-DCMAKE_DISABLE_FIND_PACKAGE_hiredis=ON -DAMUX_HIREDIS_LIBRARY=" # empty: not looked for
package=(-DHOW=package -DCMAKE_PREFIX_PATH="$work/installed")

must "each header alone (CMake's header sets)" own_build
must "install" install_and_move
must "the installation has every header" same_headers
must "amuxctl, installed" amuxctl_installed
must "add_subdirectory" project subdirectory -DHOW=subdirectory $no_fmt
must "FetchContent" project fetch -DHOW=fetch $no_fmt
for type in Release Debug; do
    must "find_package, $type" project "package-$type" "${package[@]}" -DVERSION=0.1 $no_fmt \
        -DCMAKE_BUILD_TYPE=$type
done
must "cpack -G DEB" debian_package
must "find_package, Debian package" project deb -DHOW=package -DCMAKE_PREFIX_PATH="$work/deb/usr" $no_fmt
must "one header of all" one_header g++
must "pkg-config" with_pkg_config "$here/main.cpp" "$here/other.cpp"
must "amux::format, installed" project format "${package[@]}" -DCOMPONENT=format
must "amux::format, subdirectory" project format-sub -DHOW=subdirectory -DCOMPONENT=format
must_say "amux::format without fmt names the package" "libfmt-dev" \
    project no-fmt "${package[@]}" -DCOMPONENT=format $no_fmt
must "amux::asio, installed" project asio "${package[@]}" -DCOMPONENT=asio
must "amux::asio, subdirectory" project asio-sub -DHOW=subdirectory -DCOMPONENT=asio
must_say "amux::asio without Boost names the package" "libboost1.81-dev" \
    project no-asio "${package[@]}" -DCOMPONENT=asio -DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON
must "amux::redis, installed" project redis "${package[@]}" -DCOMPONENT=redis
must "amux::redis, subdirectory" project redis-sub -DHOW=subdirectory -DCOMPONENT=redis
must "redis_backend, pkg-config and -lhiredis" with_pkg_config "$here/redis.cpp" -lhiredis
must "amux::redis_tls, installed" project tls "${package[@]}" -DCOMPONENT=redis_tls
must_say "amux::redis_tls without OpenSSL names the package" "libssl-dev" \
    project no-tls "${package[@]}" -DCOMPONENT=redis_tls -DCMAKE_DISABLE_FIND_PACKAGE_OpenSSL=ON
must_say "amux::redis without hiredis names the package" "libhiredis-dev" \
    project no-redis "${package[@]}" -DCOMPONENT=redis $no_hiredis
must_say "amux::redis without hiredis, subdirectory: no such target, and why" \
    "libhiredis-dev.*not found" \
    project no-redis-sub -DHOW=subdirectory -DCOMPONENT=redis $no_hiredis
must "the other targets without hiredis" project no-hiredis -DHOW=subdirectory $no_fmt $no_hiredis
for library in httplib beast; do
    must "the page's web service, $library" web_project web_$library
done
for page in $("$here/pasted.py" --list); do
    must "pasted from $page" pasted "$page"
done
must_say "the tests need Catch2 3, and say which was found" \
    "Catch2 3 or newer \(found: '2\.13\.9'\)\..*-DAMUX_FETCH_DEPS=ON downloads them" \
    tests_with_old_catch2
must_say "another minor version does not match" "amux.*0\.2" \
    project version "${package[@]}" -DVERSION=0.2

echo "$passed passed, $failed failed"
((failed == 0))
