// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/lock_backend.hpp>
#include <amux/testing/conformance_cases.hpp>
#include <amux/testing/conformance_refinements.hpp>
#include <amux/testing/environment.hpp>

#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace amux::testing {

/// How a backend stands to one sentence of the law.
struct conformance_result {
    /// The sentence, in words.
    std::string name;
    /// Whether it keeps it.
    bool ok = false;
    /// What went wrong; empty when nothing did.
    std::string message;
};

namespace detail {

/// Runs the cases one by one, and writes down how each ended.
template <lock_backend B>
class conformance_run {
public:
    conformance_run(B& backend, const environment& where) : cases_{backend, where} {}

    template <class Case>
    void operator()(std::string name, Case member)
    {
        conformance_result r{std::move(name), true, {}};
        try {
            (cases_.*member)();
        } catch (const std::exception& e) {
            r.ok = false;
            r.message = e.what();
        } catch (...) {
            r.ok = false;
            r.message = "something was thrown";
        }
        results.push_back(std::move(r));
    }

    std::vector<conformance_result> results;

private:
    conformance_refinements<B> cases_;
};

} // namespace detail

/// Tests a backend against the law that stands at `lock_backend`, and that of the refinements which it models: what
/// an author of one calls from a test, with whatever framework.
///
///     manual_event_loop loop;
///     my_backend backend{loop};
///     for (const auto& r : run_conformance(backend, in_virtual_time(loop)))
///         if (!r.ok)
///             std::cerr << r.name << ": " << r.message << '\n';
///
/// Effects: takes and frees leases whose keys begin with `where.prefix`; leaves some that expire soon.
/// Returns: a result for each sentence, failed or not. An operation that throws fails its case.
template <lock_backend B>
std::vector<conformance_result> run_conformance(B& backend, const environment& where)
{
    using cases = detail::conformance_refinements<B>;
    detail::conformance_run<B> check{backend, where};
    check("acquire takes a free key", &cases::acquire_takes_a_free_key);
    check("acquire is refused while another holds the key",
          &cases::acquire_refuses_what_another_holds);
    check("acquire by the owner succeeds again, and the ttl starts anew",
          &cases::acquire_by_the_owner_succeeds_again_and_the_ttl_starts_anew);
    check("of many that acquire at once exactly one succeeds",
          &cases::of_many_that_acquire_at_once_one_succeeds);
    check("extend by the owner lets the ttl start anew",
          &cases::extend_by_the_owner_lets_the_ttl_start_anew);
    check("extend by another gives false and changes nothing",
          &cases::extend_by_another_gives_false_and_changes_nothing);
    check("extend never creates a lease", &cases::extend_never_creates_a_lease);
    check("release by the owner frees the key", &cases::release_by_the_owner_frees_the_key);
    check("release of what is not one's own gives false and frees nothing",
          &cases::release_of_what_is_not_ones_own_gives_false_and_frees_nothing);
    check("an expired lease is free for every operation, and not before",
          &cases::an_expired_lease_is_free_for_every_operation);
    check("two keys do not interfere", &cases::two_keys_do_not_interfere);
    check("a key may consist of any bytes", &cases::a_key_may_consist_of_any_bytes);
    check("a ttl may be as long as a year", &cases::a_ttl_may_be_as_long_as_a_year);
    if constexpr (cases::tells)
        check("a refusal tells, if anything, how long the holder has at most",
              &cases::a_refusal_tells_at_most_how_long_the_holder_has);
    if constexpr (cases::fences) {
        check("fences rise over all holders", &cases::fences_rise_over_all_holders);
        check("the owner keeps its fence", &cases::the_owner_keeps_its_fence);
    }
    if constexpr (cases::inspects)
        check("inspect tells token, fence and remaining time",
              &cases::inspect_tells_token_fence_and_remaining_time);
    if constexpr (cases::inspects && cases::keeps_metadata)
        check("metadata stays with its lease", &cases::metadata_stays_with_its_lease);
    if constexpr (cases::notifies) {
        check("a wait for a release ends at once when the key is free",
              &cases::a_wait_for_release_ends_at_once_when_the_key_is_free);
        check("a wait for a release ends when the key is released",
              &cases::a_wait_for_release_ends_when_the_key_is_released);
        check("a wait for a release ends when it is stopped",
              &cases::a_wait_for_release_ends_when_it_is_stopped);
    }
    return std::move(check.results);
}

} // namespace amux::testing
