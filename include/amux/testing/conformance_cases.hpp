// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/stop_token.hpp>
#include <amux/lock_backend.hpp>
#include <amux/task.hpp>
#include <amux/testing/environment.hpp>
#include <amux/when_all.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace amux::testing::detail {

/// What the cases are written with: a backend's operations, run to their end one after the other.
template <lock_backend B>
class conformance_base {
public:
    using milliseconds = std::chrono::milliseconds;
    static constexpr bool fences = fencing_backend<B>;
    /// Whether a refusal has room for the time that the holder has.
    static constexpr bool tells = !requires(B& b, std::string_view s, milliseconds t) {
        { b.acquire(s, s, t) } -> amux::detail::awaits_to<bool>;
    };
    static constexpr bool inspects = inspecting_backend<B>;
    static constexpr bool notifies = notifying_backend<B>;
    static constexpr bool keeps_metadata = metadata_backend<B>;

    conformance_base(B& backend, const environment& where)
        : backend_{backend}, where_{where}, ttl{milliseconds{100} + 10 * where.slack}
    {}

protected:
    static void expect(bool holds, const std::string& what)
    {
        if (!holds)
            throw std::runtime_error{"expected: " + what};
    }

    /// A key that no other case uses.
    std::string fresh(std::string_view text = "key")
    {
        return where_.prefix + "case " + std::to_string(++keys_) + ", " + std::string{text};
    }

    acquire_result acquire(const std::string& k, const std::string& token, milliseconds t,
                           const std::string& metadata = {})
    {
        return run_in(where_, [&b = backend_, k, token, t, metadata] {
            return ask(b, k, token, t, metadata);
        });
    }
    bool extend(const std::string& k, const std::string& token, milliseconds t)
    {
        return run_in(where_, [&b = backend_, k, token, t] { return b.extend(k, token, t); });
    }
    bool release(const std::string& k, const std::string& token)
    {
        return run_in(where_, [&b = backend_, k, token] { return b.release(k, token); });
    }
    std::optional<std::string> get(const std::string& k)
    {
        return run_in(where_, [&b = backend_, k] { return b.get(k); });
    }
    std::optional<lease_info> inspect(const std::string& k)
        requires inspects
    {
        return run_in(where_, [&b = backend_, k] { return b.inspect(k); });
    }

    void pass(milliseconds d) { where_.pass(d); }
    /// The last moment at which a lease of `ttl` is alive for sure, and what is left until it is over for sure.
    milliseconds nearly() const { return ttl - milliseconds{1} - 5 * where_.slack; }
    milliseconds rest() const { return ttl + where_.slack - nearly(); }

    void expect_holder(const std::string& k, const std::optional<std::string>& who,
                       const std::string& when)
    {
        const auto found = get(k);
        expect(found == who, "get gives " + (who ? "'" + *who + "'" : "none") + " " + when +
                                 ", not " + (found ? "'" + *found + "'" : "none"));
    }
    void take(const std::string& k, const std::string& token)
    {
        expect(acquire(k, token, ttl).acquired, "acquire by '" + token + "' takes the free key");
    }

    static task<acquire_result> ask(B& b, std::string k, std::string token, milliseconds t,
                                    std::string metadata)
    {
        acquire_result result;
        const std::string_view text = metadata;
        const auto take = [&result](auto answer) {
            if constexpr (std::same_as<decltype(answer), bool>) {
                result.acquired = answer;
            } else if constexpr (std::same_as<decltype(answer), unfenced_result>) {
                result.acquired = answer.acquired;
                result.holder_ttl = answer.holder_ttl;
            } else {
                result = answer;
            }
        };
        if constexpr (keeps_metadata)
            take(co_await b.acquire(k, token, t, text));
        else
            take(co_await b.acquire(k, token, t));
        co_return result;
    }

    B& backend_;
    const environment& where_;

public:
    const milliseconds ttl; // of the leases in the cases

private:
    std::size_t keys_ = 0;
};

/// One member function for each sentence of the law that stands at `lock_backend`.
template <lock_backend B>
class conformance_cases : public conformance_base<B> {
    using base = conformance_base<B>;

public:
    using base::base;

    void acquire_takes_a_free_key()
    {
        const auto k = this->fresh();
        this->expect_holder(k, {}, "before anybody has asked");
        this->take(k, "a");
        this->expect_holder(k, "a", "after the grant");
    }

    void acquire_refuses_what_another_holds()
    {
        const auto k = this->fresh();
        this->take(k, "a");
        this->expect(!this->acquire(k, "b", this->ttl).acquired, "acquire by another is refused");
        this->expect_holder(k, "a", "after the refusal");
        this->pass(this->nearly());
        this->expect(!this->acquire(k, "b", this->ttl).acquired,
                     "acquire by another is refused shortly before the end");
        this->pass(this->rest());
        this->expect_holder(k, {}, "at the end: refusals do not lengthen a lease");
    }

    void acquire_by_the_owner_succeeds_again_and_the_ttl_starts_anew()
    {
        const auto longer = this->fresh("longer");
        const auto shorter = this->fresh("shorter");
        this->take(longer, "a");
        this->expect(this->acquire(shorter, "a", 10 * this->ttl).acquired, "the key is free");
        this->pass(this->nearly());
        this->expect(this->acquire(longer, "a", this->ttl).acquired, "the owner acquires again");
        this->expect(this->acquire(shorter, "a", this->ttl).acquired, "the owner acquires again");
        this->pass(this->nearly());
        this->expect_holder(longer, "a", "within the ttl of the second acquire");
        this->expect_holder(shorter, "a", "within the ttl of the second acquire");
        this->pass(this->rest());
        this->expect_holder(longer, {}, "after the ttl of the second acquire");
        this->expect_holder(shorter, {}, "after the ttl of the second, shorter acquire");
    }

    void of_many_that_acquire_at_once_one_succeeds()
    {
        const auto k = this->fresh();
        const auto all = run_in(this->where_, [&b = this->backend_, k, t = this->ttl] {
            std::vector<task<acquire_result>> asking;
            for (int n = 0; n < 20; ++n)
                asking.push_back(base::ask(b, k, "token " + std::to_string(n), t, {}));
            return when_all(std::move(asking));
        });
        const auto granted =
            std::count_if(all.begin(), all.end(), [](const auto& r) { return r.acquired; });
        this->expect(granted == 1, "one grant, not " + std::to_string(granted));
    }

    void extend_by_the_owner_lets_the_ttl_start_anew()
    {
        const auto longer = this->fresh("longer");
        const auto shorter = this->fresh("shorter");
        this->take(longer, "a");
        this->expect(this->acquire(shorter, "a", 10 * this->ttl).acquired, "the key is free");
        this->pass(this->nearly());
        this->expect(this->extend(longer, "a", this->ttl), "extend by the owner gives true");
        this->expect(this->extend(shorter, "a", this->ttl), "extend by the owner gives true");
        this->pass(this->nearly());
        this->expect_holder(longer, "a", "within the new ttl");
        this->expect_holder(shorter, "a", "within the new ttl");
        this->pass(this->rest());
        this->expect_holder(longer, {}, "after the new ttl");
        this->expect_holder(shorter, {}, "after the new, shorter ttl");
    }

    void extend_by_another_gives_false_and_changes_nothing()
    {
        const auto k = this->fresh();
        this->take(k, "a");
        this->expect(!this->extend(k, "b", 10 * this->ttl), "extend by another gives false");
        this->expect_holder(k, "a", "after that");
        this->pass(this->nearly() + this->rest());
        this->expect_holder(k, {}, "after the owner's ttl");
    }

    void extend_never_creates_a_lease()
    {
        const auto absent = this->fresh("absent");
        const auto expired = this->fresh("expired");
        const auto released = this->fresh("released");
        this->take(expired, "a");
        this->take(released, "a");
        this->expect(this->release(released, "a"), "the owner releases");
        this->pass(this->nearly() + this->rest());
        for (const auto& k : {absent, expired, released}) {
            this->expect(!this->extend(k, "a", this->ttl), "extend gives false: " + k);
            this->expect_holder(k, {}, "after an extend of what was not held: " + k);
        }
    }

    void release_by_the_owner_frees_the_key()
    {
        const auto k = this->fresh();
        this->take(k, "a");
        this->expect(this->release(k, "a"), "release by the owner gives true");
        this->expect_holder(k, {}, "after the release");
        this->expect(!this->release(k, "a"), "a second release gives false");
        this->take(k, "b");
        this->expect(!this->release(k, "a"), "release by the former owner gives false");
        this->expect_holder(k, "b", "after a release by the former owner");
    }

    void release_of_what_is_not_ones_own_gives_false_and_frees_nothing()
    {
        const auto k = this->fresh("held by another");
        const auto absent = this->fresh("absent");
        const auto expired = this->fresh("expired");
        this->take(k, "a");
        this->expect(!this->release(k, "b"), "release by another gives false");
        this->expect_holder(k, "a", "after a release by another");
        this->expect(!this->release(absent, "a"), "release of a free key gives false");
        this->take(expired, "a");
        this->pass(this->nearly() + this->rest());
        this->expect(!this->release(expired, "a"), "release of an expired lease gives false");
    }

    /// Each operation meets the end of a lease of its own, so that none tidies up for another.
    void an_expired_lease_is_free_for_every_operation()
    {
        std::vector<std::string> keys;
        for (int n = 0; n < 8; ++n) {
            keys.push_back(this->fresh());
            this->take(keys.back(), "a");
        }
        this->pass(this->nearly());
        this->expect(!this->acquire(keys[0], "b", this->ttl).acquired, "not yet free for acquire");
        this->expect(this->extend(keys[1], "a", this->ttl), "not yet over for extend");
        this->expect(this->release(keys[2], "a"), "not yet over for release");
        this->expect_holder(keys[3], "a", "before the end");
        this->pass(this->rest());
        this->expect(this->acquire(keys[4], "b", this->ttl).acquired, "free for acquire");
        this->expect(!this->extend(keys[5], "a", this->ttl), "over for extend");
        this->expect(!this->release(keys[6], "a"), "over for release");
        this->expect_holder(keys[7], {}, "at the end");
    }
};

} // namespace amux::testing::detail
