#!/usr/bin/env bash
# SPDX-License-Identifier: BSL-1.0
usage() {
    cat <<'TEXT'
usage: tests/run.sh                       all legs
       tests/run.sh LEG...                some legs
       tests/run.sh quick [CATCH2 ARGS]   one fast build (g++ -O0), runs the matching tests in it

Legs, in order:
  gcc        g++ 12 -O2 -DNDEBUG: what users ship
  examples   g++ 12 without flags, as they are built first: the examples, amuxctl and its tests
  clang14    the oldest clang promised: every header, the unit tests with fewer rounds
  clang19    clang 19 -O0: no inlining, so every frame and every tail call is real; libstdc++ asserts
  coverage   what the leg clang19 has run of include/: nothing is left out without a reason in words
  asan       clang 19 -O0, address and undefined-behaviour sanitizers: lifetimes, and a minute of random faults of Redis
  asan-gcc   g++ -O0, address sanitizer: its own idea of where a frame's variables live
  schedules  g++ -O2: every order of the steps of two and three threads, in small programs
  tsan       clang 19 -O1, thread sanitizer: data races and lock order, where there are threads
  checks     layers, format, doc snippets and links, contracts, headers alone, instruction counts,
             negative compile tests, clang-tidy
  bugs       mistakes put back on purpose: each must turn its test red
  bugs-amuxctl  the same, in amuxctl
  consumers  a user's project: subdirectory, FetchContent, installed package, pkg-config
  libcxx     LLVM's standard library: each public header, one program, and what is said without the flag
  fuzz       libFuzzer's programs for the model of the locks, orders for leases, files for the bank
Only when named, since it takes hours:
  mutants    clang 19 -O0: the core changed in one place at a time; a change that no test notices fails

As root, missing Debian packages are installed first; otherwise the line to run is printed.

Environment:
  AMUX_BUILD_ROOT   where to build                           (default: build/ in the repository)
  AMUX_JOBS         compilers and tests at a time            (default: number of processors)
  AMUX_TEST_SCALE   factor on the rounds of random and stress tests, such as 0.1 or 20
                    (default: a value per leg)
  AMUX_FAULT_SECONDS of the random faults in the leg asan      (default: 60)
  AMUX_SCHEDULES    the part of the programs of leg schedules that is run, such as 0.1 (default: 1)
  AMUX_FUZZ_SECONDS for each target of the leg fuzz          (default: 20)
  AMUX_NO_INSTALL   do not look for missing packages

The last line is "N passed, N failed" over all legs; the exit code is 0 only when nothing failed.
TEXT
}

set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
root=$PWD
build_root=${AMUX_BUILD_ROOT:-$root/build}
jobs=${AMUX_JOBS:-$(nproc)}
all_legs=(gcc examples clang14 clang19 coverage asan asan-gcc schedules tsan checks bugs bugs-amuxctl consumers libcxx fuzz)
known_legs=("${all_legs[@]}" mutants)
passed=0
failed=0

install_for() {
    local leg packages=()
    for leg in "$@"; do
        case $leg in
            clang14) packages+=(clang-14) ;;
            clang19 | asan | tsan | bugs | bugs-amuxctl | fuzz | mutants) packages+=(clang-19 libclang-rt-19-dev) ;;
            coverage) packages+=(llvm-19) ;;
            checks) packages+=(clang-14 clang-19 clang-format-19 clang-tidy-19 doxygen valgrind) ;;
            consumers) packages+=(pkg-config) ;;
            libcxx) packages+=(clang-19 libc++-19-dev libc++abi-19-dev) ;;
        esac
    done
    tests/support/install.sh g++ cmake ninja-build python3 libfmt-dev catch2 \
        libhiredis-dev libssl-dev libboost1.81-dev libcpp-httplib-dev pkg-config openssl redis-server \
        $(printf '%s\n' ${packages[@]+"${packages[@]}"} | sort -u)
}

# Some kernels place programs at addresses that the sanitizers of g++ 12 cannot map.
plain_addresses=()
setarch -R true 2>/dev/null && plain_addresses=(setarch -R)

# configure DIR COMPILER FLAGS [CMAKE ARGS]
configure() {
    local dir=$1 compiler=$2 flags=$3
    shift 3
    cmake -S . -B "$dir" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS="$flags" \
        -DAMUX_BUILD_TESTS=ON -DAMUX_BUILD_EXAMPLES=OFF -DAMUX_TESTS_TOGETHER=ON "$@"
}

# count LEG PASSED FAILED SECONDS: the leg's closing line. A leg in which nothing ran has failed.
count() {
    local leg=$1 good=$2 bad=$3 seconds=$4
    ((good + bad > 0)) || bad=1
    passed=$((passed + good))
    failed=$((failed + bad))
    echo "$leg: $good passed, $bad failed ($seconds s)"
}

show_failure() {
    echo "---- $1: $2; the errors in $3, and its end:"
    grep -E '^FAILED|:[0-9]+: (fatal )?error:|\*\*\*Failed' "$3" | cut -c 1-400 | head -n 40
    echo "----"
    grep -vE '^ +Start +[0-9]+: |\.\.\. +Passed |^\[[0-9]+/[0-9]+\] ' "$3" | tail -n 80
    echo "----"
}

# compiler_leg LEG SCALE COMPILER FLAGS [CMAKE ARGS]: builds the tests, runs them with ctest.
compiler_leg() {
    local leg=$1 scale=$2 compiler=$3 flags=$4 start=$SECONDS
    shift 4
    local dir=$build_root/$leg log=$build_root/$leg.log report=$build_root/$leg.xml
    rm -f "$report"
    echo "$leg: building with $compiler $flags"
    if ! { configure "$dir" "$compiler" "$flags" "$@" && cmake --build "$dir" -j "$jobs" -- -k 0; } \
        >"$log" 2>&1; then
        show_failure "$leg" "the build failed" "$log"
        count "$leg" 0 1 $((SECONDS - start))
        return
    fi
    echo "$leg: built in $((SECONDS - start)) s, testing"
    AMUX_TEST_SCALE=${AMUX_TEST_SCALE:-$scale} \
        ${plain_addresses[@]+"${plain_addresses[@]}"} \
        ctest --test-dir "$dir" -j $((3 * jobs)) --no-tests=error --output-on-failure \
        --output-junit "$report" >>"$log" 2>&1 </dev/null
    local code=$?
    # The suite's line of the report, <testsuite ... tests="9" failures="0" disabled= skipped=>.
    local tests failures skipped
    number() { sed -n "s/^[[:space:]]*$1=\"\([0-9]*\)\".*/\1/p" "$report" 2>/dev/null | head -n 1; }
    tests=$(number tests) failures=$(number failures) skipped=$(number skipped)
    if ((code != 0)); then
        show_failure "$leg" "ctest gave $code" "$log"
        ((${failures:-0} > 0)) || failures=1
    fi
    count "$leg" $((${tests:-0} - ${failures:-0} - ${skipped:-0})) $((${failures:-0})) \
        $((SECONDS - start))
}

# script_leg LEG COMMAND...: a suite that ends with a line "N passed, N failed" of its own.
script_leg() {
    local leg=$1 start=$SECONDS
    shift
    local log=$build_root/$leg.log
    echo "$leg: running"
    AMUX_BUILD_ROOT=$build_root AMUX_JOBS=$jobs "$@" >"$log" 2>&1 </dev/null
    local code=$? line good=0 bad=0
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    if [[ -n $line ]]; then
        good=${line%% *}
        bad=${line#*, }
        bad=${bad%% *}
    fi
    ((code == 0 || bad > 0)) || bad=1
    ((bad == 0)) || show_failure "$leg" "failed" "$log"
    count "$leg" "$good" "$bad" $((SECONDS - start))
}

run_leg() {
    case $1 in
        gcc) compiler_leg gcc 1 g++ "-O2 -DNDEBUG" "-DAMUX_TEST_FOLDERS=random;stress;faults;redis;asio;web;foreign" ;;
        examples) compiler_leg examples 1 g++ "" -DAMUX_BUILD_EXAMPLES=ON -DAMUX_TEST_FOLDERS=amuxctl ;;
        clang14) # Each file alone, so that none leans on what another one includes.
            compiler_leg clang14 0.1 clang++-14 "-O1" -DAMUX_TEST_FOLDERS= -DAMUX_TESTS_TOGETHER=OFF
            ;;
        clang19)
            # The counters lie in a file that is mapped, so that a process that dies on purpose counts too.
            rm -rf "$build_root/clang19/profile"
            LLVM_PROFILE_FILE=$build_root/clang19/profile/%m%c.profraw \
                compiler_leg clang19 0.5 clang++-19 "-O0 -D_GLIBCXX_ASSERTIONS -fprofile-instr-generate \
-fcoverage-mapping -fprofile-update=atomic -mllvm -runtime-counter-relocation" \
                "-DAMUX_TEST_FOLDERS=random;stress;faults;redis;redis/faults;asio;web" -DAMUX_TEST_RANDOM_FAULTS=OFF
            ;;
        coverage) script_leg coverage python3 tests/coverage/report.py ;;
        asan)
            compiler_leg asan 0.2 clang++-19 "-O0 -g1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS \
-fsanitize=address,undefined -fno-sanitize-recover=all" \
                "-DAMUX_TEST_FOLDERS=random;stress;faults;redis;redis/faults;asio;web"
            ;;
        asan-gcc)
            # Without optimization g++ 12 takes an operator new that is a template for that of somebody else.
            AMUX_SCHEDULES=${AMUX_SCHEDULES:-0.01} compiler_leg asan-gcc 0.2 g++ \
                "-O0 -g1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS -fsanitize=address \
-Wno-mismatched-new-delete" \
                "-DAMUX_TEST_FOLDERS=random;stress;faults;schedules"
            ;;
        schedules) compiler_leg schedules 1 g++ "-O2 -DNDEBUG" -DAMUX_TEST_FOLDERS=schedules ;;
        # The tests in the other folders have one thread.
        tsan) compiler_leg tsan 0.2 clang++-19 "-O1 -g1 -fsanitize=thread" \
            "-DAMUX_TEST_FOLDERS=stress;redis;redis/faults;asio;web" \
            -DAMUX_TEST_RANDOM_FAULTS=OFF ;;
        checks) script_leg checks python3 tests/checks/run.py ;;
        bugs) script_leg bugs python3 tests/bugs/run.py ;;
        bugs-amuxctl) script_leg bugs-amuxctl python3 tests/amuxctl/mistakes.py ;;
        consumers) script_leg consumers tests/consumer/run.sh ;;
        libcxx) script_leg libcxx python3 tests/libcxx/run.py ;;
        fuzz) script_leg fuzz python3 tests/fuzz/run.py ;;
        mutants) script_leg mutants python3 tests/mutate/run.py ;;
    esac
}

quick() {
    install_for quick || exit 2
    local dir=$build_root/quick log=$build_root/quick.log
    if ! { configure "$dir" g++ "-O0" -DAMUX_TESTS_TOGETHER=OFF && cmake --build "$dir" -j "$jobs" --target amux_tests; } \
        >"$log" 2>&1; then
        show_failure quick "the build failed" "$log"
        exit 1
    fi
    AMUX_TEST_SCALE=${AMUX_TEST_SCALE:-0.1} exec "$dir/tests/amux_tests" "$@"
}

mkdir -p "$build_root"
case ${1:-} in
    -h | --help)
        usage
        exit 0
        ;;
    quick)
        shift
        quick "$@"
        ;;
esac

legs=("$@")
((${#legs[@]} > 0)) || legs=("${all_legs[@]}")
for leg in "${legs[@]}"; do
    if [[ " ${known_legs[*]} " != *" $leg "* ]]; then
        echo "tests/run.sh: no leg '$leg' (one of: ${known_legs[*]}, quick)" >&2
        exit 2
    fi
done
install_for "${legs[@]}" || exit 2

for leg in "${legs[@]}"; do
    run_leg "$leg"
done
echo
echo "$passed passed, $failed failed"
((failed == 0))
