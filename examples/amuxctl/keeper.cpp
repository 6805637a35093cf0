// SPDX-License-Identifier: BSL-1.0
#include "keeper.hpp"

#include "cancel_listener.hpp"
#include "exit_code.hpp"
#include "processes.hpp"
#include "store.hpp"
#include "wake.hpp"

#include <amux/detail/lease_terms.hpp>
#include <amux/distributed_lock.hpp>
#include <amux/loop_thread.hpp>
#include <amux/redis_backend.hpp>
#include <amux/sync_wait.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <unistd.h>

namespace amuxctl {

namespace {

using namespace std::chrono_literals;
using lease_locks = amux::distributed_lock<amux::redis_backend>;

class keeper {
public:
    /// `others` are the front's children that are not the command's, ourselves too.
    keeper(const request& r, bond& to_front, std::vector<pid_t> others)
        : r_{r},
          front_{to_front},
          below_{to_front.shared().front, std::move(others)},
          times_{r.times()},
          locks_{amux::make_redis_lock(url_for(r), thread_.loop(), {}, hooks())}
    {}

    void run()
    {
        if (!acquire())
            return;
        while (stay()) {
        }
        if (front_.broken())
            end_command();
        give_back();
    }

private:
    amux::lock_hooks hooks()
    {
        amux::lock_hooks h;
        h.on_renew = [this](const amux::lock_event&) { changed_(); };
        h.on_lost = [this](const amux::lock_event& e) {
            if (e.cause)
                note_trouble(amux::detail::what_of(e.cause));
            changed_();
        };
        h.on_error = [this](const amux::lock_event& e) {
            const std::string text = amux::detail::what_of(e.cause);
            note_trouble(text);
            if (!front_.shared().told.exchange(true))
                front_.send(note::kind::trouble, text);
        };
        return h;
    }

    void note_trouble(const std::string& text)
    {
        const std::lock_guard hold{mutex_};
        last_trouble_ = text;
    }

    bool acquire()
    {
        amux::acquire_options o{.ttl = r_.ttl, .renew = true, .metadata = *r_.metadata};
        try {
            const cancel_listener listener{front_};
            const std::stop_token stop = listener.stop.get_token();
            if (r_.wait.count() == 0) {
                lease_ = amux::sync_wait(locks_.try_acquire(r_.key, o, stop));
            } else {
                o.max_wait = r_.wait;
                lease_.emplace(amux::sync_wait(locks_.acquire(r_.key, o, stop)));
            }
        } catch (const amux::lock_cancelled_error&) {
            return refuse(exit_code::failed);
        } catch (const amux::lock_wait_timeout_error& e) {
            return refuse(e.store_in_trouble() ? exit_code::store : exit_code::busy);
        } catch (const amux::lock_error&) {
            return refuse(exit_code::store);
        }
        if (!lease_)
            return refuse(exit_code::busy, "somebody else has it");
        tell_granted();
        return true;
    }

    /// For the reason that is thrown.
    bool refuse(exit_code code)
    {
        return refuse(code, amux::detail::what_of(std::current_exception()));
    }
    bool refuse(exit_code code, const std::string& text)
    {
        // First: what was obtained meanwhile is being given back, and the front waits no longer than for this note.
        amux::sync_wait(locks_.drain(2s));
        front_.send(note::kind::refused, text, static_cast<int>(code));
        return false;
    }

    void tell_granted()
    {
        note n;
        n.what = note::kind::granted;
        n.yes = lease_->fence().has_value();
        n.fence = lease_->fence().value_or(0);
        copy_text(n.token, lease_->token());
        first_until_ = lease_->valid_until();
        publish();
        front_.send(n);
    }

    void publish()
    {
        const time_point until = lease_->valid_until();
        if (lease_->is_held())
            front_.shared().until = until.time_since_epoch().count();
        else if (!lost_at_)
            lose();
    }

    void lose()
    {
        lost_at_ = amux::clock::now();
        const std::lock_guard hold{mutex_};
        front_.send(note::kind::lost, last_trouble_);
    }

    /// Until there is something to do. False when the lease is to be given back.
    bool stay()
    {
        alarm_.set(due_);
        pollfd fds[] = {
            {front_.fd(), POLLIN, 0}, {changed_.fd(), POLLIN, 0}, {alarm_.fd(), POLLIN, 0}};
        poll(fds, 3, -1);
        changed_.clear();
        publish();
        while (const auto n = front_.take()) {
            if (n->what == note::kind::release || n->what == note::kind::cancel)
                return false;
        }
        if (front_.broken())
            return false;
        if (front_.shared().command == 0)
            return wait_for_command();
        back_up();
        return true;
    }

    /// A front that is stopped before it has started anything keeps no lease.
    bool wait_for_command()
    {
        due_ = times_.term_due(first_until_);
        pid_t none = 0;
        return amux::clock::now() < due_ ||
               !front_.shared().command.compare_exchange_strong(none, page::none_any_more);
    }

    void back_up()
    {
        const time_point now = amux::clock::now();
        due_ = lost_at_ ? times_.backstop_due_lost(*lost_at_, front_.until())
                        : times_.backstop_due(front_.until());
        if (now < due_)
            return;
        strike_group(SIGKILL);
        duration pause = 200ms;
        if (getppid() == front_.shared().front) // else its number may be somebody else's
            pause = (std::max)(pause, below_.kill_all());
        due_ = now + pause; // again, for what it has just started
    }

    /// First the group, which needs no look at anything. While the front is there it alone can take the command's number
    /// away; afterwards it stays taken as long as anything is left in the group, and between the look at that and the
    /// signal it does not come round.
    void strike_group(int signal) const
    {
        const pid_t group = front_.shared().command;
        if (group <= 0)
            return;
        kill(-group, signal);
        kill(-group, SIGCONT);
    }
    /// The front is gone; the command itself went with it. What it has started is told, and, if need be, killed: the
    /// group, then what has the token in its environment. All the while the lease is renewed.
    void end_command()
    {
        pid_t group = 0;
        if (front_.shared().command.compare_exchange_strong(group, page::none_any_more))
            return;
        if (getpgid(group) == group) // it has changed its user, so the kernel let it live
            kill(group, SIGKILL);
        strike_group(SIGTERM);
        until_none([this, group](bool kill) {
            if (kill)
                strike_group(SIGKILL);
            return running_in_group(group);
        });
        marked_processes marked{"AMUX_TOKENS", lease_->token()};
        marked.running(SIGTERM);
        marked.running(SIGCONT);
        until_none([&marked](bool kill) { return marked.running(kill ? SIGKILL : 0); });
    }
    /// `look(kill)` says whom it sees, or that it cannot look. Whom one look has overlooked because it came meanwhile, the
    /// next one sees: they are repeated until nothing has come meanwhile; on a machine where something always does, for a
    /// while.
    template <class Look>
    void until_none(Look look)
    {
        const time_point told = amux::clock::now();
        std::optional<std::vector<pid_t>> before;
        duration pause = 20ms;
        for (int seen_none = 0; seen_none != 20;) {
            const auto begun = begun_so_far();
            const bool kill = amux::clock::now() >= times_.kill_due(told, front_.until());
            const auto left = look(kill);
            const bool none = left && left->empty();
            if (none && begun && begun_so_far() == begun)
                return;
            seen_none = none ? seen_none + 1 : 0;
            // What takes no signal does not go sooner for being asked more often.
            pause = kill && left == before ? (std::min<duration>)(2 * pause, 1s) : 20ms;
            before = left;
            std::this_thread::sleep_for(none ? 1ms : pause);
            publish();
        }
    }

    void give_back()
    {
        bool ours = false;
        std::string trouble;
        try {
            ours = amux::sync_wait(lease_->release());
        } catch (const std::exception&) {
            ours = true; // as far as one can know
            trouble = amux::detail::what_of(std::current_exception());
        }
        lease_.reset();
        amux::sync_wait(locks_.drain(2s));
        note n;
        n.what = note::kind::released;
        n.yes = ours;
        copy_text(n.text, trouble);
        front_.send(n);
    }

    const request& r_;
    bond& front_;
    descendants below_;
    const ending times_;
    wake changed_;
    alarm_clock alarm_;
    std::mutex mutex_;
    std::string last_trouble_; // under the mutex
    amux::loop_thread thread_;
    lease_locks locks_;
    std::optional<amux::acquired_lock> lease_;
    time_point first_until_{};
    std::optional<time_point> lost_at_;
    time_point due_{}; // the next look at the clock
};

} // namespace

void keep(const request& r, bond& to_front, std::vector<pid_t> others)
{
    try {
        keeper{r, to_front, std::move(others)}.run();
    } catch (const std::invalid_argument& e) { // files of TLS, say
        to_front.send(note::kind::refused, e.what(), static_cast<int>(exit_code::usage));
    } catch (const std::exception& e) {
        to_front.send(note::kind::refused, e.what(), static_cast<int>(exit_code::failed));
    }
    _exit(0);
}

} // namespace amuxctl
