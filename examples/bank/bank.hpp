// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "transfers.hpp"

#include <amux/asyncmux.hpp>
#include <amux/clock.hpp>
#include <amux/event_loop.hpp>
#include <amux/task.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bank {

struct account {
    std::string name;
    std::int64_t balance; // cents; ruled by the lock on the name
};

enum class outcome : unsigned char { open, done, declined, cancelled };

/// A transfer, and how it went.
struct order {
    account* from;
    account* to;
    std::int64_t amount;
    outcome result = outcome::open;
    amux::clock::duration waited{}; // for its lock
};

/// Accounts under the locks of one mux, and a list of orders that its clients work off together.
///
/// Every piece of work under a lock is suspended in its middle, as it would be by a write to a journal. So a lock that
/// does not hold loses money, and the next audit finds out.
class bank {
public:
    static constexpr std::int64_t opening_balance = 100'000;
    static constexpr std::size_t audit_every = 500; // orders
    static constexpr std::size_t statement_every = 10;
    static constexpr std::size_t hurried_every = 4;
    static constexpr std::chrono::milliseconds patience{120}; // of those in a hurry

    explicit bank(const std::vector<transfer>& transfers)
    {
        std::unordered_map<std::string_view, std::size_t> index;
        const auto number = [&](const std::string& name) {
            const auto [place, is_new] = index.try_emplace(name, accounts_.size());
            if (is_new)
                accounts_.push_back({name, opening_balance});
            return place->second;
        };
        std::vector<std::array<std::size_t, 2>> ends;
        for (const transfer& t : transfers)
            ends.push_back({number(t.from), number(t.to)});
        for (std::size_t i = 0; i != transfers.size(); ++i)
            orders_.push_back(
                {&accounts_[ends[i][0]], &accounts_[ends[i][1]], transfers[i].amount});
    }

    /// Works off orders until there are none left. Any number of clients, on any number of loops.
    amux::task<> client(amux::event_loop& loop)
    {
        for (std::size_t i = next_++; i < orders_.size(); i = next_++) {
            if (i % audit_every == 0)
                co_await audit(loop);
            if (i % statement_every == 0)
                co_await take_statement(*orders_[i].from, loop);
            co_await carry_out(orders_[i], i % hurried_every == 0, loop);
            ++ended_;
        }
    }

    /// Counts the money: all of it must be there, whatever is going on.
    // [audit]
    amux::task<> audit(amux::event_loop& loop)
    {
        const auto guard = co_await mux_.lock_shared(); // the whole mux: nobody writes
        std::int64_t sum = 0;
        for (std::size_t i = 0; i != accounts_.size(); ++i) {
            sum += accounts_[i].balance;
            if (i == accounts_.size() / 2)
                co_await loop.schedule();
        }
        if (sum != total())
            missing_ = total() - sum;
        ++audits_;
    }
    // [/audit]

    /// Looks for the longest queue, at this moment.
    void look_at_queues()
    {
        const auto now = mux_.snapshot();
        for (const auto& key : now.keys)
            longest_queue_ = (std::max)(longest_queue_, key.waiters);
    }

    const std::vector<order>& orders() const noexcept { return orders_; }
    std::size_t ended() const noexcept { return ended_; }
    std::size_t accounts() const noexcept { return accounts_.size(); }
    std::size_t audits() const noexcept { return audits_; }
    std::size_t statements() const noexcept { return statements_; }
    std::size_t longest_queue() const noexcept { return longest_queue_; }
    /// By how much an audit was off; cents.
    std::int64_t missing() const noexcept { return missing_; }

private:
    std::int64_t total() const noexcept
    {
        return opening_balance * static_cast<std::int64_t>(accounts_.size());
    }

    amux::task<> carry_out(order& o, bool in_a_hurry, amux::event_loop& loop)
    {
        const auto asked = amux::clock::now();
        // [transfer]
        amux::asyncmux<>::guard guard;
        if (in_a_hurry) {
            const std::array both{std::string_view{o.from->name}, std::string_view{o.to->name}};
            guard = co_await mux_.try_lock_all_for(both, patience);
        } else {
            guard = co_await mux_.lock_all(o.from->name, o.to->name);
        }
        // [/transfer]
        o.waited = amux::clock::now() - asked;
        if (!guard) {
            o.result = outcome::cancelled;
            co_return;
        }

        const std::int64_t has = o.from->balance;
        const std::int64_t gets = o.to->balance;
        co_await write_to_journal(o, loop);
        if (has < o.amount) {
            o.result = outcome::declined;
            co_return;
        }
        o.from->balance = has - o.amount;
        o.to->balance = gets + o.amount;
        o.result = outcome::done;
    }

    amux::task<> take_statement(const account& a, amux::event_loop& loop)
    {
        // [statement]
        const auto guard = co_await mux_.lock_shared(a.name);
        const std::int64_t before = a.balance;
        co_await loop.schedule();
        if (a.balance != before)
            missing_ = before - a.balance;
        // [/statement]
        ++statements_;
    }

    /// Stands for real I/O: most of it is quick, some is not.
    static amux::task<> write_to_journal(const order& o, amux::event_loop& loop)
    {
        if (o.amount % 4 == 0)
            co_await loop.sleep_for(std::chrono::milliseconds{2});
        else
            co_await loop.schedule();
    }

    amux::asyncmux<> mux_{{.name = "accounts"}};
    std::vector<account> accounts_;
    std::vector<order> orders_;
    std::atomic<std::size_t> next_{0};
    std::atomic<std::size_t> ended_{0};
    std::atomic<std::size_t> audits_{0};
    std::atomic<std::size_t> statements_{0};
    std::atomic<std::int64_t> missing_{0};
    std::size_t longest_queue_ = 0; // of the one who looks
};

} // namespace bank
