// SPDX-License-Identifier: BSL-1.0
// What stands on the command line.
#pragma once

#include "ending.hpp"

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace amuxctl {

using std::chrono::milliseconds;

/// The words make no sense. One line, which repeats no URL.
class usage_error : public std::runtime_error {
public:
    explicit usage_error(const std::string& text, bool json = false)
        : std::runtime_error{text}, json_{json}
    {}
    /// Whether it is to be told in JSON: that was read before.
    bool json() const noexcept { return json_; }

private:
    bool json_;
};

enum class verb : unsigned char { hold, attempt, inspect, list, release, watch, help, version };

enum class loudness : unsigned char { quiet, normal, verbose };

struct request {
    verb what = verb::help;
    std::string url;
    std::string key; // of `list`: what keys begin with
    std::string token; // of `release`
    std::string about; // of `help`: a command, or empty
    std::vector<std::string> command;
    milliseconds ttl{30'000};
    milliseconds wait{30'000}; // `amux::forever`
    std::optional<milliseconds> stop_margin;
    std::optional<milliseconds> kill_after;
    std::optional<std::string> metadata;
    int busy_code;
    loudness loud = loudness::normal;
    bool json = false;
    bool force = false;

    request();
    /// The times of the command, with their defaults.
    ending times() const;
};

/// "1.5s", "500ms", "10m", "2h", "1d"; a number alone is seconds. None for anything else, and above 366 days.
std::optional<milliseconds> read_duration(std::string_view text);

/// The words behind the program's name. `from_environment` is AMUX_URL, or null.
/// Throws: `usage_error`.
request read_words(const std::vector<std::string>& words, const char* from_environment);

} // namespace amuxctl
