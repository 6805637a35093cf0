// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/clock.hpp>
#include <amux/detail/in_quotes.hpp>
#include <amux/detail/trace_event.hpp>
#include <amux/lock_mode.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace amux::detail {

/// Makes of events, in the order in which they were recorded, the trace events of Chrome.
///
/// A key, and the whole mux, is a track on which exclusive holds lie, and a counter of those who share it. Waits may
/// overlap, and so may holds of several keys: those are asynchronous events of their track.
class trace_json {
public:
    trace_json(std::string_view mux_name, clock::time_point begin) : begin_{begin}
    {
        name_track("process_name", 1, printable(mux_name));
    }

    void add(const trace_event& e)
    {
        switch (e.kind) {
            case trace_kind::wait:
                waits_[e.request] = {track_of(e).number, e.at, name_of(e) + ": waiting", e.mode};
                break;
            case trace_kind::leave:
                end_wait(e, "given up");
                break;
            case trace_kind::grant:
                end_wait(e, "granted");
                begin_hold(e);
                break;
            case trace_kind::downgrade:
                downgrade(e);
                break;
            default: // release
                end_hold(e, "released");
        }
    }

    /// The document. What has not ended yet is drawn until `end`.
    std::string finish(clock::time_point end, std::size_t dropped) &&
    {
        for (auto& [name, t] : tracks_) {
            if (t.exclusive)
                complete(t, *t.exclusive, end, "still held");
        }
        for (const auto& [set, s] : sets_)
            spread("hold", s, end, "still held");
        for (const auto& [request, w] : waits_)
            spread("wait", w, end, "still waiting");
        return "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"dropped\":" + std::to_string(dropped) +
               "},\"traceEvents\":[\n" + events_ + "\n]}\n";
    }

private:
    struct track {
        std::size_t number;
        std::string name;
        std::optional<clock::time_point> exclusive; // held so since then
        std::size_t sharers = 0;
    };
    /// Something that may overlap with its like.
    struct span {
        std::size_t track;
        clock::time_point since;
        std::string name;
        lock_mode mode;
    };

    /// What it is about, for people. A key stands in quotes: what it is called, nothing else is.
    std::string name_of(const trace_event& e)
    {
        if (e.set)
            return std::to_string(e.keys) + (e.keys == 1 ? " key" : " keys");
        if (e.keys == 0)
            return "the whole mux";
        if (e.length == trace_event::unsaid)
            return "key #" +
                   std::to_string(unsaid_.try_emplace(e.thing, unsaid_.size() + 1).first->second);
        const std::string_view text{e.text.data(), e.text.size()};
        if (e.length == trace_event::cut)
            return in_quotes(text.substr(0, trace_event::kept))
                .append(text.substr(trace_event::kept));
        return in_quotes(text.substr(0, e.length));
    }

    track& track_of(const trace_event& e)
    {
        std::string name = e.set ? "several keys" : name_of(e);
        const auto [at, is_new] = tracks_.try_emplace(name);
        track& t = at->second;
        if (is_new) {
            t.number = tracks_.size() + 1; // not that of the process, which viewers treat apart
            name_track("thread_name", t.number, name);
            t.name = std::move(name);
        }
        return t;
    }

    void begin_hold(const trace_event& e)
    {
        if (e.set) {
            sets_[e.thing] = {track_of(e).number, e.at, name_of(e), e.mode};
            return;
        }
        track& t = track_of(e);
        if (e.mode == lock_mode::exclusive)
            t.exclusive = e.at;
        else
            share(t, e.at, t.sharers + 1);
    }

    /// Of what was held before the trace began, nothing is known.
    void end_hold(const trace_event& e, const char* how)
    {
        if (e.set) {
            if (const auto held = sets_.find(e.thing); held != sets_.end()) {
                spread("hold", held->second, e.at, how);
                sets_.erase(held);
            }
            return;
        }
        track& t = track_of(e);
        if (e.mode == lock_mode::exclusive && t.exclusive) {
            complete(t, *t.exclusive, e.at, how);
            t.exclusive.reset();
        } else if (e.mode == lock_mode::shared && t.sharers != 0) {
            share(t, e.at, t.sharers - 1);
        }
    }

    void downgrade(trace_event e)
    {
        e.mode = lock_mode::exclusive;
        end_hold(e, "downgraded");
        e.mode = lock_mode::shared;
        begin_hold(e);
    }

    void end_wait(const trace_event& e, const char* how)
    {
        if (const auto begun = waits_.find(e.request); begun != waits_.end()) {
            spread("wait", begun->second, e.at, how);
            waits_.erase(begun);
        }
    }

    // The document:

    /// The beginning of an event: `"key":` and so on may follow.
    std::string& event(const char* phase, std::size_t number)
    {
        if (!events_.empty())
            events_ += ",\n";
        return ((events_ += "{\"ph\":\"") += phase) +=
               "\",\"pid\":1,\"tid\":" + std::to_string(number);
    }
    void name_track(const char* what, std::size_t number, std::string_view name)
    {
        (event("M", number) += ",\"name\":\"") += what;
        ((events_ += "\",\"args\":{\"name\":") += json(name)) += "}}";
    }

    /// As a string of JSON. Requires: it is printable.
    static std::string json(std::string_view text) { return in_quotes(text, '"'); }
    static void append_time(std::string& out, const char* name, clock::duration d)
    {
        const auto ns = d.count();
        const std::string rest = std::to_string(1000 + ns % 1000); // microseconds, with a fraction
        (((out += name) += std::to_string(ns / 1000)) += '.') += rest.substr(1);
    }

    void complete(const track& t, clock::time_point since, clock::time_point until, const char* how)
    {
        std::string& out = event("X", t.number);
        append_time(out, ",\"ts\":", since - begin_);
        append_time(out, ",\"dur\":", until - since);
        ((out += R"(,"cat":"hold","name":"exclusive","args":{"end":")") += how) += "\"}}";
    }
    void share(track& t, clock::time_point at, std::size_t sharers)
    {
        t.sharers = sharers;
        std::string& out = event("C", t.number);
        append_time(out, ",\"ts\":", at - begin_);
        (out += ",\"name\":") += json(t.name + ": shared by");
        out += ",\"args\":{\"holders\":" + std::to_string(sharers) + "}}";
    }
    void spread(const char* category, const span& s, clock::time_point until, const char* how)
    {
        const std::string id = std::to_string(++spans_);
        const auto mark = [&](const char* phase, clock::time_point at) {
            std::string& out = event(phase, s.track);
            append_time(out, ",\"ts\":", at - begin_);
            ((out += ",\"cat\":\"") += category) += "\",\"id\":" + id;
            (out += ",\"name\":") += json(s.name);
            (((out += ",\"args\":{\"mode\":\"") += to_string(s.mode)) += "\",\"end\":\"") += how;
            out += "\"}}";
        };
        mark("b", s.since);
        mark("e", until);
    }

    const clock::time_point begin_;
    std::string events_;
    std::map<std::string, track> tracks_;
    std::map<const void*, span> waits_; // by request
    std::map<const void*, span> sets_; // held
    std::map<const void*, std::size_t> unsaid_; // keys without a text
    std::size_t spans_ = 0;
};

} // namespace amux::detail
