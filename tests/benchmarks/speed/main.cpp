// SPDX-License-Identifier: BSL-1.0
// Without this file there is no table: all rows in one program. tests/benchmarks/speed.py runs each in its own process.
#include "rows.hpp"

int main(int argc, char** argv)
{
    bench::table t;
    bench::add_uncontended(t);
    return t.main(argc, argv);
}
