// SPDX-License-Identifier: BSL-1.0
// Readers and writers of one page: readers together, a writer alone, everybody in order of arrival.
#include "check.hpp"

#include <amux/amux.hpp>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace {

struct page {
    std::string name = "start";
    std::string text = "first";
    int readers = 0;
    int most_readers = 0;
};

// [read]
amux::task<> read(amux::asyncmux<>& mux, amux::event_loop& loop, page& p)
{
    auto guard = co_await mux.lock_shared(p.name); // with other readers
    p.most_readers = (std::max)(p.most_readers, ++p.readers);
    co_await loop.schedule();
    check(!p.text.empty(), "no reader sees a page that is half written");
    --p.readers;
}
// [/read]

// [write]
amux::task<> write(amux::asyncmux<>& mux, amux::event_loop& loop, page& p, std::string text)
{
    auto guard = co_await mux.lock(p.name); // alone
    check(p.readers == 0, "a writer is alone");
    p.text.clear();
    co_await loop.schedule();
    p.text = std::move(text);

    guard.downgrade(); // from here on a reader: other readers get in, no other writer did
    co_await loop.schedule();
    std::printf("published: %s\n", p.text.c_str());
}
// [/write]

} // namespace

int main()
{
    amux::asyncmux<> mux;
    amux::event_loop loop;
    page p;

    std::vector<amux::task<>> visitors;
    for (int i = 0; i != 3; ++i)
        visitors.push_back(read(mux, loop, p));
    visitors.push_back(write(mux, loop, p, "second"));
    for (int i = 0; i != 5; ++i)
        visitors.push_back(read(mux, loop, p)); // behind the writer, although readers are in
    visitors.push_back(write(mux, loop, p, "third"));
    loop.block_on(amux::when_all(std::move(visitors)));

    std::printf("at most %d readers at a time\n", p.most_readers);
    check(p.most_readers == 5, "readers read together");
    check(p.text == "third", "writers write in order of arrival");
}
