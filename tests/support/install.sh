#!/usr/bin/env bash
# SPDX-License-Identifier: BSL-1.0
# usage: install.sh PACKAGE...
#
# Installs those of the given Debian packages that are missing: as root with apt, else it prints
# the line to run and exits with 2. The name `catch2` means Catch2 3 or newer; Debian 12 has it in
# bookworm-backports only. Touches neither apt nor the network when nothing is missing, and does
# nothing at all when AMUX_NO_INSTALL is set.
set -u -o pipefail

version_of() { dpkg-query -W -f '${db:Status-Status} ${Version}' "$1" 2>/dev/null; }

have() {
    local state
    state=$(version_of "$1") || return 1
    [[ $state == installed\ * ]] || return 1
    [[ $1 != catch2 ]] || dpkg --compare-versions "${state#installed }" ge 3
}

missing_of() {
    local package
    for package in "$@"; do have "$package" || printf '%s ' "$package"; done
}

give_up() {
    printf '%s\n' "$1" "Needed (names of Debian 12): $missing" >&2
    printf '%s\n' "Catch2 must be 3 or newer (there: -t bookworm-backports)." >&2
    exit 2
}

# Writes an apt source for bookworm-backports, made from the machine's own entry for bookworm:
# same server, same key, other suite.
backports_source() {
    local entry file address suite
    entry=$(apt-get indextargets --format '$(SOURCESENTRY)|$(REPO_URI)|$(RELEASE)' \
        'Created-By: Packages' 'Origin: Debian' 'Codename: bookworm' 'Component: main' | head -n 1)
    [[ -n $entry ]] || return 1
    IFS='|' read -r file address suite <<<"$entry"
    file=${file%:*}
    address=${address%/}
    if [[ $file == *.sources ]]; then
        awk -v address="$address" -v suite="$suite" '
            BEGIN { RS = ""; FS = "\n" }
            index($0, address) && $0 ~ "(^|\n)Suites:([^\n]*[ \t])?" suite "([ \t\n]|$)" && !done {
                done = 1
                for (i = 1; i <= NF; i++) {
                    if ($i ~ /^#/) continue
                    if ($i ~ /^Suites:/) $i = "Suites: bookworm-backports"
                    if ($i ~ /^Components:/) $i = "Components: main"
                    print $i
                }
            }' "$file" >/etc/apt/sources.list.d/amux-backports.sources
    else
        awk -v address="$address" -v suite="$suite" '
            /^deb[ \t]/ && index($0, address) && !done {
                for (i = 2; i <= NF; i++) {
                    if ($i != suite) continue
                    done = 1
                    for (k = 1; k < i; k++) printf "%s ", $k
                    print "bookworm-backports main"
                    break
                }
            }' "$file" >/etc/apt/sources.list.d/amux-backports.list
    fi
}

[[ -z ${AMUX_NO_INSTALL:-} ]] || exit 0
missing=$(missing_of "$@")
[[ -n $missing ]] || exit 0

command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    give_up "This machine has no apt: install what is needed and set AMUX_NO_INSTALL=1."

ordinary=$(for p in $missing; do [[ $p == catch2 ]] || printf '%s ' "$p"; done)
if [[ $(id -u) != 0 ]]; then
    echo "Missing packages. Run this script as root, or:" >&2
    [[ -z $ordinary ]] || echo "    sudo apt-get install --no-install-recommends $ordinary" >&2
    [[ $ordinary == "$missing" ]] ||
        echo "    sudo apt-get install -t bookworm-backports catch2   # needs the backports source" >&2
    exit 2
fi

export DEBIAN_FRONTEND=noninteractive
apt() {
    local output
    output=$(apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@" 2>&1 </dev/null) ||
        { printf '%s\n' "$output" | tail -n 20 >&2; return 1; }
}

echo "installing: $missing"
apt update -qq || echo "going on with the package lists of before" >&2
if [[ -n $ordinary ]]; then
    apt install -qq -y --no-install-recommends $ordinary ||
        give_up "apt-get could not install these packages."
fi

if [[ $ordinary != "$missing" ]]; then
    candidate=$(apt-cache policy catch2 | awk '/Candidate:/ { print $2 }')
    if dpkg --compare-versions "${candidate:-0}" ge 3; then
        apt install -qq -y --no-install-recommends catch2
    else
        if [[ -z $(apt-get indextargets --format '$(SITE)' 'Codename: bookworm-backports') ]]; then
            backports_source || give_up "No apt source for bookworm to derive bookworm-backports from."
            apt update -qq
        fi
        apt install -qq -y --no-install-recommends -t bookworm-backports catch2
    fi
    have catch2 || give_up "apt-get could not install Catch2 3."
fi
