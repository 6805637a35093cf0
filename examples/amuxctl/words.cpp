// SPDX-License-Identifier: BSL-1.0
#include "words.hpp"

#include "exit_code.hpp"
#include "vocabulary.hpp"

#include <amux/lock_options.hpp>

#include <charconv>
#include <cstddef>
#include <utility>

namespace amuxctl {

namespace {

using namespace std::chrono_literals;

constexpr milliseconds shortest_ttl = 1s; // what processes can keep
constexpr milliseconds longest_time = std::chrono::hours{24 * 366};
constexpr std::size_t longest_key = 64 * 1024;

/// Repeats a word only when it can be no URL.
std::string quoted(std::string_view word)
{
    constexpr std::string_view harmless = "abcdefghijklmnopqrstuvwxyz-0123456789.";
    const bool fine = word.size() <= 30 && word.find_first_not_of(harmless) == word.npos;
    return fine ? " '" + std::string{word} + "'" : "";
}

class reader {
public:
    reader(const std::vector<std::string>& words, const char* from_environment) : words_{words}
    {
        r_.url = from_environment ? from_environment : "redis://127.0.0.1:6379";
    }

    request read()
    {
        try {
            return read_all();
        } catch (const usage_error& e) {
            throw usage_error{e.what(), r_.json};
        }
    }

private:
    request read_all()
    {
        while (at_ != words_.size() && !command_begins_)
            word(words_[at_++]);
        r_.command.assign(words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
        if (asks_for_text_)
            return std::move(r_);
        if (!verb_)
            throw usage_error{"which command? See amuxctl --help"};
        give_places();
        check_times();
        return std::move(r_);
    }

    bool runs() const
    {
        return verb_ && (verb_->what == verb::hold || verb_->what == verb::attempt);
    }

    void word(const std::string& w)
    {
        if (w == "--" && (!only_places_ || (runs() && !places_.empty()))) {
            command_begins_ = runs() && !places_.empty(); // before the key: it begins with a '-'
            only_places_ = true;
        } else if (!only_places_ && w.size() > 1 && w[0] == '-') {
            take_option(w);
        } else if (!verb_) {
            take_verb(w);
        } else if (runs() && places_.size() == 1) {
            command_begins_ = true;
            --at_;
        } else {
            places_.push_back(w);
        }
    }

    void take_verb(const std::string& w)
    {
        if (w == "help") {
            help();
            return;
        }
        verb_ = find_verb(w);
        if (!verb_)
            throw usage_error{"no such command" + quoted(w) + ". See amuxctl --help"};
        r_.what = verb_->what;
        if (verb_->what == verb::attempt)
            r_.wait = milliseconds{};
    }

    void help()
    {
        if (verb_)
            r_.about = verb_->name;
        else if (at_ < words_.size() && find_verb(words_[at_]))
            r_.about = words_[at_];
        give_text(verb::help);
    }

    /// Whatever else stands there.
    void give_text(verb what)
    {
        r_.what = what;
        asks_for_text_ = true;
        at_ = words_.size();
    }

    void take_option(const std::string& w)
    {
        const auto equals = w.find('=');
        std::string name = w.substr(0, equals);
        name = name == "-q"   ? "--quiet"
               : name == "-v" ? "--verbose"
               : name == "-h" ? "--help"
                              : name;
        const option* const o = find_option(name);
        if (!o)
            throw usage_error{"no such option" + quoted(name)};
        if (verb_ && !applies(*o, verb_->name))
            throw usage_error{std::string{verb_->name} + " knows no " + name};
        if (o->value.empty() && equals != std::string::npos)
            throw usage_error{name + " takes no value"};
        std::string value;
        if (equals != std::string::npos)
            value = w.substr(equals + 1);
        else if (!o->value.empty() && (at_ == words_.size() || words_[at_] == "--"))
            throw usage_error{name + " needs a value"}; // "--" itself only as NAME=--
        else if (!o->value.empty())
            value = words_[at_++];
        given_.push_back(o);
        set(name, std::move(value));
    }

    void set(const std::string& name, std::string value)
    {
        if (name == "--url")
            r_.url = std::move(value);
        else if (name == "--json")
            r_.json = true;
        else if (name == "--quiet")
            r_.loud = loudness::quiet;
        else if (name == "--verbose")
            r_.loud = loudness::verbose;
        else if (name == "--wait")
            r_.wait = value == "forever" ? amux::forever : time(name, value);
        else if (name == "--ttl")
            r_.ttl = time(name, value);
        else if (name == "--stop-margin")
            r_.stop_margin = time(name, value);
        else if (name == "--kill-after")
            r_.kill_after = time(name, value);
        else if (name == "--metadata")
            r_.metadata = std::move(value);
        else if (name == "--busy-code")
            r_.busy_code = code(name, value);
        else if (name == "--force")
            r_.force = true;
        else if (name == "--help")
            help();
        else if (name == "--version")
            give_text(verb::version);
    }

    static milliseconds time(const std::string& name, const std::string& text)
    {
        const auto d = read_duration(text);
        if (!d)
            throw usage_error{name + " is not a duration such as 500ms, 30s, 5m or 2h"};
        return *d;
    }

    static int code(const std::string& name, const std::string& text)
    {
        int n = -1;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
        if (error != std::errc{} || end != text.data() + text.size() || n < 0 || n > 255)
            throw usage_error{name + " is not a number from 0 to 255"};
        return n;
    }

    void give_places()
    {
        const auto usage = [&](const std::string& trouble) {
            return usage_error{std::string{verb_->name} + ": " + trouble};
        };
        for (const option* o : given_) { // those before the command's name
            if (!applies(*o, verb_->name))
                throw usage_error{std::string{verb_->name} + " knows no " + std::string{o->name}};
        }
        const std::size_t most = verb_->what == verb::release && !r_.force ? 2 : 1;
        if (places_.size() > most)
            throw usage("there are too many words");
        if (places_.empty() && verb_->what != verb::list)
            throw usage("which key?");
        if (!places_.empty())
            r_.key = places_[0];
        if (r_.key.empty() && verb_->what != verb::list)
            throw usage("the key is empty");
        if (r_.key.size() > longest_key)
            throw usage("the key is too long");
        if (most == 2 && places_.size() < 2)
            throw usage("which token? (or --force)");
        if (most == 2)
            r_.token = places_[1];
        if (runs() && (r_.command.empty() || r_.command[0].empty()))
            throw usage("which command is to be run?");
    }

    void check_times() const
    {
        if (!runs())
            return;
        if (r_.ttl < shortest_ttl)
            throw usage_error{"--ttl is shorter than 1s"};
        const ending e = r_.times();
        if (e.stop_margin > r_.ttl / 2)
            throw usage_error{"--stop-margin is longer than half of the ttl"};
        if (e.kill_after >= e.stop_margin)
            throw usage_error{"--kill-after is not shorter than --stop-margin"};
    }

    const std::vector<std::string>& words_;
    std::size_t at_ = 0;
    bool command_begins_ = false; // the rest is the command
    bool only_places_ = false; // no more options
    bool asks_for_text_ = false;
    const verb_text* verb_ = nullptr;
    std::vector<std::string> places_;
    std::vector<const option*> given_;
    request r_;
};

} // namespace

request::request() : busy_code{static_cast<int>(exit_code::busy)} {}

ending request::times() const
{
    const milliseconds margin = stop_margin.value_or(ttl / 5);
    return {margin, kill_after.value_or(margin / 2)};
}

std::optional<milliseconds> read_duration(std::string_view text)
{
    double number = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (error != std::errc{} || text[0] == '-')
        return std::nullopt;
    const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
    const double factor = unit == "ms"                  ? 1
                          : unit == "s" || unit.empty() ? 1e3
                          : unit == "m"                 ? 60e3
                          : unit == "h"                 ? 3600e3
                          : unit == "d"                 ? 86400e3
                                                        : 0;
    const double result = number * factor;
    if (factor == 0 || !(result <= static_cast<double>(longest_time.count())))
        return std::nullopt;
    const milliseconds whole{static_cast<long long>(result)};
    // Next to nothing is not nothing: a wait of 0 is another thing than a short one.
    return whole.count() == 0 && number > 0 ? milliseconds{1} : whole;
}

request read_words(const std::vector<std::string>& words, const char* from_environment)
{
    return reader{words, from_environment}.read();
}

} // namespace amuxctl
