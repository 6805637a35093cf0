// SPDX-License-Identifier: BSL-1.0
// Without this file some file may make the bank example crash, lose a line, or read what nobody wrote.
// libFuzzer: -max_len=256
#include "../examples/bank/bank.hpp"
#include "../examples/bank/transfers.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

void require(bool holds, const char* what, std::size_t line = 0)
{
    if (holds)
        return;
    std::fprintf(stderr, "not so: %s; line %zu\n", what, line);
    std::abort();
}

bank::transfer_file read(const std::string& text)
{
    std::istringstream in{text};
    bank::transfer_file file = bank::read_transfers(in);
    require(!in.bad(), "the stream is fine");
    return file;
}

std::vector<std::string> lines_of(const std::string& text)
{
    std::vector<std::string> lines(1);
    for (const char c : text) {
        if (c == '\n')
            lines.emplace_back();
        else
            lines.back() += c;
    }
    return lines;
}

bool counts(std::string line, bool first)
{
    if (first && line.substr(0, 3) == "\xEF\xBB\xBF")
        line.erase(0, 3);
    std::erase_if(line, [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
    return !line.empty();
}

void check_name(const std::string& name, std::size_t line)
{
    require(!name.empty(), "a name is not empty", line);
    require(name.find_first_of(",\"\n") == name.npos, "a name holds no comma, quote or line end",
            line);
    require(bank::trimmed(name) == name, "a name has no spaces around it", line);
}

void check_reason(const bank::bad_line& bad)
{
    require(!bad.reason.empty() && bad.reason.size() < 100, "a reason is short", bad.number);
    for (const char c : bad.reason)
        require(c >= ' ' && c <= '~', "a reason is readable", bad.number);
}

/// Every line that is not empty is a transfer or has a reason; none is both.
void check_lines(const std::string& text, const bank::transfer_file& file)
{
    const std::vector<std::string> lines = lines_of(text);
    auto t = file.transfers.begin();
    auto b = file.bad.begin();
    for (std::size_t number = 1; number <= lines.size(); ++number) {
        const bool is_transfer = t != file.transfers.end() && t->line == number;
        const bool is_bad = b != file.bad.end() && b->number == number;
        t += is_transfer;
        b += is_bad;
        require(!(is_transfer && is_bad), "a line is read once", number);
        const bool there = counts(lines[number - 1], number == 1);
        const bool header =
            number == 1 && lines[0].find("time,") != std::string::npos && !is_transfer && !is_bad;
        require((is_transfer || is_bad) == (there && !header), "no line is lost or made up",
                number);
    }
    require(t == file.transfers.end() && b == file.bad.end(), "lines are told in order");
}

std::string written(const std::vector<bank::transfer>& transfers)
{
    std::string text = "time,from,to,amount\n";
    for (const bank::transfer& t : transfers)
        text += std::to_string(t.time) + "," + t.from + "," + t.to + "," +
                std::to_string(t.amount) + "\n";
    return text;
}

void check_read_back(const std::vector<bank::transfer>& transfers)
{
    const bank::transfer_file again = read(written(transfers));
    require(again.bad.empty(), "what is written is read",
            again.bad.empty() ? 0 : again.bad[0].number);
    require(again.transfers.size() == transfers.size(), "as much is read as was written");
    for (std::size_t i = 0; i != transfers.size(); ++i) {
        const bank::transfer& a = transfers[i];
        const bank::transfer& b = again.transfers[i];
        require(a.time == b.time && a.from == b.from && a.to == b.to && a.amount == b.amount,
                "what is read is what was written", i + 2);
    }
}

void check_accounts(const std::vector<bank::transfer>& transfers)
{
    const bank::bank b{transfers};
    std::set<std::string> names;
    require(b.orders().size() == transfers.size(), "each transfer is an order");
    for (std::size_t i = 0; i != transfers.size(); ++i) {
        const bank::order& o = b.orders()[i];
        names.insert({transfers[i].from, transfers[i].to});
        require(o.from->name == transfers[i].from && o.to->name == transfers[i].to &&
                    o.amount == transfers[i].amount,
                "an order is as it was read", transfers[i].line);
    }
    require(b.accounts() == names.size(), "each name has one account");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
    const std::string text{data, data + size};
    const bank::transfer_file file = read(text);
    for (const bank::transfer& t : file.transfers) {
        require(t.time >= 0 && t.amount > 0, "numbers are in their range", t.line);
        check_name(t.from, t.line);
        check_name(t.to, t.line);
        require(t.from != t.to, "two accounts", t.line);
    }
    for (const bank::bad_line& b : file.bad)
        check_reason(b);
    check_lines(text, file);
    check_read_back(file.transfers);
    check_accounts(file.transfers);
    return 0;
}
