// SPDX-License-Identifier: BSL-1.0
// amuxctl: leases in Redis for people, scripts and cron. docs/amuxctl.md says what it promises.
#include "exit_code.hpp"
#include "hold.hpp"
#include "report.hpp"
#include "store.hpp"
#include "streams.hpp"
#include "vocabulary.hpp"
#include "words.hpp"

#include <amux/error.hpp>
#include <amux/version.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

using namespace amuxctl;

/// Everybody may read the command line of a process: a password stays there no longer than it must.
void hide_urls(int count, char** words)
{
    for (int n = 1; n < count && std::strcmp(words[n], "--") != 0; ++n) {
        if (char* const url = std::strstr(words[n], "://"))
            std::memset(url + 3, 'x', std::strlen(url + 3));
    }
}

std::string host_and_process()
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    return std::string{host} + ":" + std::to_string(getpid());
}

int run(request r)
{
    if (r.what == verb::help || r.what == verb::version) {
        std::fputs(
            r.what == verb::help ? help_text(r.about).c_str() : "amuxctl " AMUX_VERSION_STRING "\n",
            stdout);
        return std::fflush(stdout) == 0 ? 0 : static_cast<int>(exit_code::failed);
    }
    require_url(r.url);
    if (!r.metadata)
        r.metadata = host_and_process();
    switch (r.what) {
        case verb::inspect:
            return static_cast<int>(inspect(r));
        case verb::list:
            return static_cast<int>(list(r));
        case verb::release:
            return static_cast<int>(release(r));
        case verb::watch:
            return static_cast<int>(watch(r));
        default:
            return hold(r);
    }
}

} // namespace

int main(int count, char** words)
{
    fill_standard_streams();
    request r;
    const auto say = [&](exit_code code, const char* event, const char* text) {
        tell(r.json, event, r.key, text);
        return static_cast<int>(code);
    };
    try {
        r = read_words({words + (count > 0), words + count}, std::getenv("AMUX_URL"));
        hide_urls(count, words);
        return run(r);
    } catch (const usage_error& e) {
        r.json = r.json || e.json();
        return say(exit_code::usage, "usage", e.what());
    } catch (const amux::lock_error& e) {
        return say(exit_code::store, "store", e.what());
    } catch (const std::exception& e) {
        return say(exit_code::failed, "failed", e.what());
    }
}
