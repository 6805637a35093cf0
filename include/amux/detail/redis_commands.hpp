// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/intrusive_list.hpp>
#include <amux/detail/redis_link.hpp>
#include <amux/detail/redis_operation.hpp>
#include <amux/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

namespace amux::detail {

/// A connection for operations, pipelined. Their answers come in the order in which they were sent.
///
/// An operation is queued until it can be sent, with all that are queued by then; a caller that finds little on its way
/// sends at once, without the I/O thread. What was sent has a place among the unanswered, which stays when the operation
/// is given up, so that its answer is known for what it is. All operations have the same time limit, so the first is due
/// first; when an answer is overdue the connection is given up, and with it whatever the server has not read.
class redis_commands final : public redis_link {
public:
    using redis_link::redis_link;

    // With the mutex:

    /// Any thread. It will be answered, by `deadline` at the latest; all others have earlier ones. Throws: `std::bad_alloc`;
    /// then it has not been asked.
    void submit(redis_operation& op, clock::time_point now)
    {
        op.deadline = now + shared_.settings.command_timeout;
        op.where = redis_operation::place::queued;
        queue_.push_back(op);
        if (ready() && !leaves_ && unanswered_.size() < few && again_.empty() &&
            queue_.front() == &op && !wire_.unsent()) {
            try {
                write_queued(now);
            } catch (...) {
                forget(op);
                throw;
            }
            wire_.send();
            const bool sent = !wire_.unsent() && wire_.write_trouble().empty();
            shared_.waker->wake_by(sent ? op.deadline : now);
        } else {
            shared_.waker->wake();
        }
    }

    /// Any thread. Its answer is not wanted any more.
    void forget(redis_operation& op) noexcept
    {
        if (op.where == redis_operation::place::queued)
            queue_.erase(op);
        else if (op.where == redis_operation::place::again)
            again_.erase(op);
        else if (op.where == redis_operation::place::sent)
            unanswered_[op.number - first_number_].op = nullptr;
        op.where = redis_operation::place::idle;
    }

    clock::time_point due(clock::time_point now) const override
    {
        auto due = redis_link::due(now);
        for (const auto* list : {&again_, &queue_}) {
            if (const auto* first = list->front())
                due = (std::min)(due, first->deadline);
        }
        if (!unanswered_.empty())
            due = (std::min)(due, unanswered_.front().deadline);
        return due;
    }

    void close() noexcept override
    {
        fail_sent("the backend was destroyed before the answer");
        fail_queued({backend_error_kind::not_applied, "the backend was destroyed"});
    }

private:
    /// With fewer unanswered ones a caller sends by itself: what is saved is a wake-up. With more, what is saved by sending
    /// many together counts more.
    static constexpr std::size_t few = 4;

    struct sent_command {
        redis_operation* op; // null: given up
        clock::time_point at;
        clock::time_point deadline;
    };

    bool wanted() const noexcept override { return !queue_.empty() || !again_.empty(); }
    void on_time(clock::time_point now) override;
    void on_up(clock::time_point) override { leaves_ = false; }
    std::string on_reply(const redisReply& reply, clock::time_point now) override;
    void on_break(const std::string& why) override
    {
        fail_sent("the connection to the Redis server at " + shared_.settings.where() +
                  " broke before the answer: " + why);
    }
    void on_refused(const redis_trouble& why) override
    {
        if (why.kind == backend_error_kind::permanent)
            fail_queued(why);
    }
    void work(clock::time_point now) override
    {
        if (!unanswered_.empty() && unanswered_.front().deadline <= now)
            break_up("no answer in " + std::to_string(shared_.settings.command_timeout.count()) +
                     " ms");
        else if (leaves_ && unanswered_.empty())
            break_up("the server has become a replica");
        else if (!leaves_ && !wire_.unsent())
            write_queued(now);
    }

    void write_queued(clock::time_point now);
    void ask_again(redis_operation& op) noexcept
    {
        op.where = redis_operation::place::again;
        again_.push_back(op);
    }

    void fail(redis_operation& op, backend_error_kind kind, const std::string& text)
    {
        op.where = redis_operation::place::idle;
        op.trouble = redis_trouble{kind, lock_message(text, {}, op.key)};
        op.answered();
    }
    void fail_queued(const redis_trouble& why)
    {
        while (redis_operation* op = pop_waiting())
            fail(*op, why.kind, why.text);
    }
    redis_operation* pop_waiting() noexcept
    {
        redis_operation* const op = again_.pop_front();
        return op ? op : queue_.pop_front();
    }
    redis_operation* first_waiting() const noexcept
    {
        return again_.empty() ? queue_.front() : again_.front();
    }
    void fail_sent(const std::string& text)
    {
        while (!unanswered_.empty()) {
            if (redis_operation* const op = take_first().op)
                fail(*op, kind_in_doubt(*op), text);
        }
    }
    std::string give_up(redis_operation* op, const char* why)
    {
        if (op)
            fail(*op, kind_in_doubt(*op),
                 "the Redis server at " + shared_.settings.where() + ": " + why);
        return why;
    }
    static backend_error_kind kind_in_doubt(const redis_operation& op) noexcept
    {
        return op.only_looks() ? backend_error_kind::not_applied
                               : backend_error_kind::indeterminate;
    }
    sent_command take_first() noexcept
    {
        const sent_command first = unanswered_.front();
        unanswered_.pop_front();
        ++first_number_;
        return first;
    }

    using operation_list =
        intrusive_list<redis_operation, &redis_operation::before, &redis_operation::behind>;

    operation_list again_; // go before the others
    operation_list queue_;
    std::deque<sent_command> unanswered_;
    std::size_t first_number_ = 0; // of the unanswered
    bool leaves_ = false; // nothing more is sent on this connection
};

/// Fails what has waited for the connection in vain.
inline void redis_commands::on_time(clock::time_point now)
{
    for (operation_list* list : {&again_, &queue_}) {
        while (redis_operation* op = list->front()) {
            if (op->deadline > now)
                break;
            list->erase(*op);
            if (last_trouble().text.empty())
                fail(*op, backend_error_kind::not_applied,
                     "the Redis server at " + shared_.settings.where() +
                         " has not taken the request in time");
            else
                fail(*op, last_trouble().kind, last_trouble().text);
        }
    }
}

inline void redis_commands::write_queued(clock::time_point now)
{
    while (redis_operation* op = first_waiting()) {
        // Without memory neither of the two is there: a command without its place would shift all answers.
        const std::size_t before = wire_.out.size();
        unanswered_.push_back({op, now, op->deadline});
        op->number = first_number_ + unanswered_.size() - 1;
        try {
            op->write(redis_command_text{wire_.out}, shared_.settings, clock_.at(op->deadline));
        } catch (...) {
            wire_.out.resize(before);
            unanswered_.pop_back();
            throw;
        }
        pop_waiting();
        // One that is asked again is due before those in front of it, and answered after them: so they are due then.
        for (auto c = std::next(unanswered_.rbegin());
             c != unanswered_.rend() && c->deadline > op->deadline; ++c)
            c->deadline = op->deadline;
        op->where = redis_operation::place::sent;
    }
}

inline std::string redis_commands::on_reply(const redisReply& reply, clock::time_point now)
{
    if (unanswered_.empty())
        return "the server has answered what nobody has asked";
    const auto number = first_number_;
    const sent_command command = take_first();
    redis_operation* const op = command.op;
    if (reply.type == REDIS_REPLY_ERROR) {
        const auto text = redis_text(reply);
        if (op && text.starts_with("NOSCRIPT ") && !op->with_text) {
            op->with_text = true;
            ask_again(*op);
            return {};
        }
        const redis_trouble trouble = redis_reply_trouble(text, shared_.settings.where());
        if (op)
            fail(*op, trouble.kind, trouble.text);
        // The next attempt may find another server behind the name; first the answers that are on their way.
        leaves_ = leaves_ || text.starts_with("READONLY ");
        return {};
    }
    const auto shown = redis_operation::time_of(reply);
    if (!shown)
        return give_up(op, "the answer of the server makes no sense");
    if (!redis_operation::is_answer_to(number, reply))
        return give_up(op, "the answer of the server is to another question");
    worked();
    clock_.learn(*shown, command.at, now);
    if (!op)
        return {};
    switch (op->read(reply)) {
        case redis_operation::verdict::answered:
            op->where = redis_operation::place::idle;
            op->answered();
            return {};
        case redis_operation::verdict::too_late:
            // By a clock that was set meanwhile, perhaps; by now it is known anew.
            if (!std::exchange(op->was_late, true))
                ask_again(*op);
            else
                fail(
                    *op, backend_error_kind::not_applied,
                    "the request came too late to the Redis server at " + shared_.settings.where());
            return {};
        default:
            return give_up(op, "the answer of the server makes no sense");
    }
}

} // namespace amux::detail
