// SPDX-License-Identifier: BSL-1.0
// Without this file there is no table: all rows in one program. tests/benchmarks/speed.py runs each in its own process.
#include "rows.hpp"

int main(int argc, char** argv)
{
    bench::table t;
    bench::add_uncontended(t);
    bench::add_queues(t);
    bench::add_threads(t);
    bench::add_whole_mux(t);
    bench::add_cancellation(t);
    bench::add_several(t);
    bench::add_holding(t);
    bench::add_observers(t);
#if defined(BENCH_ASIO)
    bench::add_asio(t);
#endif
    return t.main(argc, argv);
}
