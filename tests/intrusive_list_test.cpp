// SPDX-License-Identifier: BSL-1.0
// Without this file a list may lose what stands at its ends, or what is moved over from another one.
#include <amux/detail/intrusive_list.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

namespace {

struct letter {
    char name;
    letter* before = nullptr;
    letter* behind = nullptr;
};
using list = amux::detail::intrusive_list<letter, &letter::before, &letter::behind>;

std::string emptied(list& l)
{
    std::string text;
    while (const letter* first = l.pop_front())
        text += first->name;
    return text;
}

} // namespace

TEST_CASE("intrusive_list: it keeps the order, whichever element goes", "[intrusive_list]")
{
    letter a{'a'}, b{'b'}, c{'c'}, d{'d'};
    list l;
    for (letter* each : {&a, &b, &c, &d})
        l.push_back(*each);
    l.erase(b);
    l.erase(d);
    l.push_back(b);
    l.erase(a);
    CHECK(l.front() == &c);
    CHECK(emptied(l) == "cb");
    CHECK(l.empty());
}

TEST_CASE("intrusive_list: a list goes behind another one, in its order", "[intrusive_list]")
{
    letter a{'a'}, b{'b'}, c{'c'}, d{'d'};
    list first;
    list second;
    first.splice_back(second);
    CHECK(first.empty());
    second.push_back(a);
    first.splice_back(second);
    CHECK(second.empty());
    second.push_back(b);
    second.push_back(c);
    first.splice_back(second);
    first.push_back(d);
    first.erase(b);
    CHECK(emptied(first) == "acd");
}
