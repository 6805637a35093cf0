// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/lock_backend.hpp>
#include <amux/task.hpp>
#include <amux/testing/conformance_cases.hpp>
#include <amux/testing/environment.hpp>
#include <amux/when_all.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace amux::testing::detail {

/// What every backend owes for its keys, and what it owes for the refinements that it models.
template <lock_backend B>
class conformance_refinements : public conformance_cases<B> {
    using base = conformance_cases<B>;
    using milliseconds = std::chrono::milliseconds;

public:
    using base::base;

    void two_keys_do_not_interfere()
    {
        const auto k = this->fresh("one");
        const auto other = this->fresh("other");
        this->take(k, "a");
        this->take(other, "b");
        this->expect(!this->release(other, "a"), "a token owns no other key");
        this->expect(!this->extend(other, "a", this->ttl), "a token owns no other key");
        this->expect(this->release(k, "a"), "the owner releases");
        this->expect_holder(k, {}, "after its release");
        this->expect_holder(other, "b", "after the release of another key");
        this->take(k, "b"); // one token may own two keys
        this->expect(this->release(other, "b"), "the owner releases");
        this->expect_holder(k, "b", "after the release of another key of the same token");
    }

    void a_key_may_consist_of_any_bytes()
    {
        std::vector<std::string> tails{"a",     "a ",  " a",   "A",       "a\n", "a\r\n",
                                       "\t",    "a%s", "a%61", "{a}",     "{}",  "a}b{c",
                                       "a:b",   "a/b", "a*",   "$1",      "'a'", "a?[b]",
                                       "\"a\"", "\\a", "\xff", "\xc3\xa9"};
        tails.push_back(std::string{"a\0", 2});
        tails.push_back(std::string{"a\0b", 3});
        tails.push_back(std::string(65'536, 'x'));
        tails.push_back(std::string(65'535, 'x') + 'y');
        // The beginning is the same for all of them: what a store makes equal collides.
        const auto root = this->fresh("");
        const auto long_ttl = 100 * this->ttl;
        std::vector<std::string> keys;
        for (const auto& tail : tails)
            keys.push_back(root + tail);
        const auto name = [](std::size_t n) { return "the odd key number " + std::to_string(n); };
        for (std::size_t n = 0; n < keys.size(); ++n)
            this->expect(this->acquire(keys[n], std::to_string(n), long_ttl).acquired,
                         name(n) + " is free");
        for (std::size_t n = 0; n < keys.size(); ++n) {
            this->expect_holder(keys[n], std::to_string(n), "for " + name(n));
            this->expect(this->extend(keys[n], std::to_string(n), long_ttl), "extends " + name(n));
        }
        for (std::size_t n = 0; n < keys.size(); ++n) {
            this->expect(this->release(keys[n], std::to_string(n)), "releases " + name(n));
            this->expect_holder(keys[n], {}, "after the release of " + name(n));
        }
    }

    void a_ttl_may_be_as_long_as_a_year()
    {
        const auto k = this->fresh();
        const milliseconds year = std::chrono::hours{24 * 366};
        this->expect(this->acquire(k, "a", year).acquired, "a ttl of 366 days is granted");
        this->pass(this->ttl);
        this->expect_holder(k, "a", "a little later");
        this->expect(this->extend(k, "a", year), "extend by 366 days gives true");
        this->expect_holder(k, "a", "after the extend");
        this->expect(this->release(k, "a"), "the owner releases");
    }

    // Fences.

    void fences_rise_over_all_holders()
    {
        const auto k = this->fresh();
        std::optional<fencing_token> last;
        const auto grant = [&](const std::string& token, const std::string& how) {
            const auto fence = this->acquire(k, token, this->ttl).fence;
            this->expect(fence.has_value(), "a grant has a fence: " + how);
            this->expect(!last || *fence > *last, "the fence rises: " + how);
            last = fence;
        };
        grant("a", "the first grant");
        this->release(k, "a");
        grant("a", "to the same token, after its release");
        this->release(k, "a");
        grant("b", "to another, after a release");
        this->pass(this->nearly() + this->rest());
        grant("b", "to the same token, after its lease has expired");
        this->pass(this->nearly() + this->rest());
        grant("c", "to another, after a lease has expired");
    }

    void the_owner_keeps_its_fence()
    {
        const auto k = this->fresh();
        const auto first = this->acquire(k, "a", this->ttl).fence;
        this->expect(this->acquire(k, "a", this->ttl).fence == first,
                     "the owner that acquires again has the same fence");
        this->expect(!this->acquire(k, "b", this->ttl).acquired, "the key is held");
        this->extend(k, "a", this->ttl);
        this->expect(this->acquire(k, "a", this->ttl).fence == first,
                     "the same fence after an extend and the refusal of another");
    }

    void a_refusal_tells_at_most_how_long_the_holder_has()
    {
        const auto k = this->fresh();
        this->take(k, "a");
        this->pass(this->ttl / 2);
        const auto told = this->acquire(k, "b", this->ttl).holder_ttl;
        if (!told)
            return;
        this->expect(*told > milliseconds{} && *told <= this->ttl,
                     "above zero, and at most the ttl");
        this->expect(*told + this->where_.slack >= this->ttl - this->ttl / 2,
                     "no less than the lease has left, not " + std::to_string(told->count()));
        this->pass(*told + this->where_.slack);
        this->expect(this->acquire(k, "b", this->ttl).acquired, "the key is free after that time");
    }

    // Inspection and metadata.

    void inspect_tells_token_fence_and_remaining_time()
        requires base::inspects
    {
        const auto k = this->fresh();
        this->expect(!this->inspect(k), "nothing for a free key");
        const auto granted = this->acquire(k, "a", this->ttl);
        this->pass(this->ttl / 2);
        const auto found = this->inspect(k);
        this->expect(found.has_value(), "a lease that is held is found");
        this->expect(found->token == "a", "its token");
        this->expect(!found->fence || found->fence == granted.fence, "its fence, if any");
        if (found->remaining)
            this->expect(*found->remaining > milliseconds{} &&
                             *found->remaining <= this->ttl / 2 + this->where_.slack,
                         "the time that it has left");
        this->pass(this->ttl / 2 + this->where_.slack);
        this->expect(!this->inspect(k), "nothing once the lease has expired");
        this->take(k, "a");
        this->release(k, "a");
        this->expect(!this->inspect(k), "nothing once the lease was released");
    }

    void metadata_stays_with_its_lease()
        requires base::inspects
    {
        const auto k = this->fresh();
        const auto kept = [&] {
            const auto found = this->inspect(k);
            return found ? found->metadata : "no lease";
        };
        const std::string text{"host=a\0; pid=%d {1}\r\n", 21};
        this->acquire(k, "a", this->ttl, text);
        this->expect(kept() == text, "the metadata of the grant, byte for byte");
        this->acquire(k, "b", this->ttl, "somebody else");
        this->expect(kept() == text, "a refusal changes nothing");
        this->extend(k, "a", this->ttl);
        this->expect(kept() == text, "an extend changes nothing");
        this->release(k, "a");
        this->acquire(k, "b", this->ttl);
        this->expect(kept().empty(), "the next lease has its own, or none");
    }

    // Notification.

    void a_wait_for_release_ends_at_once_when_the_key_is_free()
        requires base::notifies
    {
        const auto k = this->fresh();
        wait(k, {});
        this->take(k, "a");
        this->release(k, "a");
        wait(k, {});
        this->take(k, "a");
        this->pass(this->nearly() + this->rest());
        wait(k, {}); // an expired lease is none
    }

    void a_wait_for_release_ends_when_the_key_is_released()
        requires base::notifies
    {
        const auto k = this->fresh();
        this->expect(this->acquire(k, "a", 100 * this->ttl).acquired, "the key is free");
        const auto released = run_in(this->where_, [&b = this->backend_, k] {
            std::vector<task<bool>> both;
            for (int n = 0; n < 3; ++n)
                both.push_back(waiting(b, k, {}));
            both.push_back(releasing(b, k));
            return when_all(std::move(both));
        });
        this->expect(released.back(), "the owner releases");
    }

    void a_wait_for_release_ends_when_it_is_stopped()
        requires base::notifies
    {
        const auto k = this->fresh();
        this->expect(this->acquire(k, "a", 100 * this->ttl).acquired, "the key is free");
        std::stop_source before;
        before.request_stop();
        wait(k, before.get_token());
        std::stop_source during;
        run_in(this->where_, [&b = this->backend_, k, during] {
            std::vector<task<bool>> both;
            both.push_back(waiting(b, k, during.get_token()));
            both.push_back(stopping(during));
            return when_all(std::move(both));
        });
        this->expect_holder(k, "a", "after waits that were stopped");
    }

private:
    void wait(const std::string& k, std::stop_token stop)
    {
        run_in(this->where_, [&b = this->backend_, k, stop] { return waiting(b, k, stop); });
    }
    static task<bool> waiting(B& b, std::string k, std::stop_token stop)
    {
        co_await b.wait_for_release(k, stop);
        co_return true;
    }
    static task<bool> releasing(B& b, std::string k)
    {
        const bool done = co_await b.release(k, "a");
        co_return done;
    }
    static task<bool> stopping(std::stop_source source)
    {
        source.request_stop();
        co_return true;
    }
};

} // namespace amux::testing::detail
