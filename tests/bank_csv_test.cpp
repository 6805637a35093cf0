// SPDX-License-Identifier: BSL-1.0
// Without this file the bank example may play money that nobody has written down.
#include "../examples/bank/transfers.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <sstream>
#include <string>
#include <variant>

namespace {

std::string reason(const std::string& line)
{
    const auto parsed = bank::parse_transfer(line);
    const auto* const why = std::get_if<std::string>(&parsed);
    return why ? *why : "none";
}

bank::transfer_file read(const std::string& text)
{
    std::istringstream in{text};
    return bank::read_transfers(in);
}

} // namespace

TEST_CASE("bank: a line is time, from, to and amount", "[bank]")
{
    const auto file = read("12,ann,bob,345\n");
    REQUIRE(file.transfers.size() == 1);
    const bank::transfer& t = file.transfers[0];
    CHECK(t.time == 12);
    CHECK(t.from == "ann");
    CHECK(t.to == "bob");
    CHECK(t.amount == 345);
    CHECK(file.bad.empty());
}

TEST_CASE("bank: line ends, spaces, a header and empty lines do not matter", "[bank]")
{
    const std::string text = GENERATE("1,a,b,5\n2,b,c,6\n", "1,a,b,5\n2,b,c,6", // no last line end
                                      "time,from,to,amount\r\n1,a,b,5\r\n2,b,c,6\r\n",
                                      "\xEF\xBB\xBFtime, from, to, amount\n1,a,b,5\n2,b,c,6\n",
                                      "\xEF\xBB\xBF"
                                      "1,a,b,5\n2,b,c,6\n",
                                      "\n 1 ,\ta, b ,5 \n\n2,b,c,6\n \n");
    const auto file = read(text);
    CHECK(file.bad.empty());
    REQUIRE(file.transfers.size() == 2);
    CHECK(file.transfers[0].from == "a");
    CHECK(file.transfers[1].amount == 6);
}

TEST_CASE("bank: a line that is no transfer is left out, with its number and the reason", "[bank]")
{
    const auto file = read("time,from,to,amount\n1,a,b,5\nx,a,b,5\n3,a,b,5\ntime,from,to,amount\n");
    CHECK(file.transfers.size() == 2);
    REQUIRE(file.bad.size() == 2);
    CHECK(file.bad[0].number == 3);
    CHECK(file.bad[0].reason == "the time is not a whole number: 'x'");
    CHECK(file.bad[1].number == 5); // a header stands on the first line or nowhere
}

TEST_CASE("bank: the reason says which field is wrong, and how", "[bank]")
{
    CHECK(reason("1,a,b,5") == "none");
    CHECK(reason("a") == "too few fields: 1 instead of 4");
    CHECK(reason("1,a,b") == "too few fields: 3 instead of 4");
    CHECK(reason("1,a,b,5,") == "too many fields: 5 instead of 4");
    CHECK(reason("1,a,b,5,6,7") == "too many fields: 6 instead of 4");
    CHECK(reason("-1,a,b,5") == "the time is negative: '-1'");
    CHECK(reason(",a,b,5") == "the time is not a whole number: ''");
    CHECK(reason("1,,b,5") == "the account to take from is empty");
    CHECK(reason("1,a, ,5") == "the account to give to is empty");
    CHECK(reason("1,a,a,5") == "from and to are the same account: 'a'");
    CHECK(reason("1,a,b,") == "the amount is not a whole number: ''");
    CHECK(reason("1,a,b,five") == "the amount is not a whole number: 'five'");
    CHECK(reason("1,a,b,5.00") == "the amount is not a whole number: '5.00'");
    CHECK(reason("1,a,b,0x5") == "the amount is not a whole number: '0x5'");
    CHECK(reason("1,a,b,-5") == "the amount is negative: '-5'");
    CHECK(reason("1,a,b,0") == "the amount is zero");
    CHECK(reason("1,\"a\",b,5").starts_with("quotes are not understood: "));
}

TEST_CASE("bank: amounts end where 64 bits end", "[bank]")
{
    CHECK(reason("1,a,b,9223372036854775807") == "none");
    CHECK(reason("1,a,b,9223372036854775808") == "the amount is too large: '9223372036854775808'");
    CHECK(reason("1,a,b,-9223372036854775809") == "the amount is negative: '-9223372036854775809'");
}

TEST_CASE("bank: a reason is one short line, whatever the file holds", "[bank]")
{
    const std::string why = reason("1,a,b," + std::string(1000, 'x') + "\x1b[2J");
    CHECK(why == "the amount is not a whole number: '" + std::string(30, 'x') + "...'");
    CHECK(reason(std::string("1,a,b,\0\x1b", 8)) == "the amount is not a whole number: '?\?'");
}
