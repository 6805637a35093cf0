// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <amux/detail/sha1.hpp>

#include <array>
#include <string_view>

namespace amux::detail {

/// A script that the server runs in one piece, and its name there.
///
/// Each begins by reading the server's clock, in microseconds, and does nothing when that is past ARGV[1]: a request that
/// was given up meanwhile is not carried out later. Each answers with that clock, a number (-1 too late; 0 no: another
/// holds the key, or nobody; 1 yes), what else there is to say, and last the last of ARGV: the number of the command. So
/// an answer is never taken for that to another command, whatever a proxy in between has lost or repeated.
/// It takes a value whole (ARGV[2] is what the owner's begins with, see `redis_value`), or by the token alone, ARGV[3]:
/// so a value that a stranger has set is his token. Fences go as text: a Lua number is exact to 2^53 only.
struct redis_script {
    constexpr explicit redis_script(std::string_view t) : text{t}, digest_{sha1::hex(t)} {}

    constexpr std::string_view name() const { return {digest_.data(), digest_.size()}; }

    std::string_view text;

private:
    std::array<char, 40> digest_;
};

/// KEYS: the lease, the counter. ARGV: ..., ttl, metadata, number. A yes is followed by the fence, a no by the ttl of the holder.
///
/// The counter rises before the lease is there, at least to the time: so fences rise also over a loss of the data.
inline constexpr redis_script redis_acquire{R"(local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
if tonumber(now) > tonumber(ARGV[1]) then return {tonumber(now), -1, tonumber(ARGV[#ARGV])} end
local held = redis.call('GET', KEYS[1])
if not held then
  local fence = now
  if redis.call('INCR', KEYS[2]) < tonumber(now) then redis.call('SET', KEYS[2], now)
  else fence = redis.call('GET', KEYS[2]) end
  redis.call('SET', KEYS[1], ARGV[2] .. fence .. ':' .. ARGV[5], 'PX', ARGV[4])
  return {tonumber(now), 1, fence, tonumber(ARGV[#ARGV])}
end
if string.sub(held, 1, #ARGV[2]) == ARGV[2] or held == ARGV[3] then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  return {tonumber(now), 1, string.match(held, '^%d+', #ARGV[2] + 1) or '', tonumber(ARGV[#ARGV])}
end
return {tonumber(now), 0, redis.call('PTTL', KEYS[1]), tonumber(ARGV[#ARGV])})"};

/// KEYS: the lease. ARGV: ..., ttl, number.
inline constexpr redis_script redis_extend{R"(local t = redis.call('TIME')
local now = tonumber(t[1] .. string.sub('00000' .. t[2], -6))
if now > tonumber(ARGV[1]) then return {now, -1, tonumber(ARGV[#ARGV])} end
local held = redis.call('GET', KEYS[1])
if held and (string.sub(held, 1, #ARGV[2]) == ARGV[2] or held == ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  return {now, 1, tonumber(ARGV[#ARGV])}
end
return {now, 0, tonumber(ARGV[#ARGV])})"};

/// KEYS: the lease. ARGV: ..., channel, number. Who may not publish has released all the same: those who wait then poll.
inline constexpr redis_script redis_release{R"(local t = redis.call('TIME')
local now = tonumber(t[1] .. string.sub('00000' .. t[2], -6))
if now > tonumber(ARGV[1]) then return {now, -1, tonumber(ARGV[#ARGV])} end
local held = redis.call('GET', KEYS[1])
if held and (string.sub(held, 1, #ARGV[2]) == ARGV[2] or held == ARGV[3]) then
  redis.call('DEL', KEYS[1])
  redis.pcall('PUBLISH', ARGV[4], '')
  return {now, 1, tonumber(ARGV[#ARGV])}
end
return {now, 0, tonumber(ARGV[#ARGV])})"};

/// KEYS: the lease. ARGV: the time, number. A yes is followed by ttl and value.
inline constexpr redis_script redis_look{R"(local t = redis.call('TIME')
local now = tonumber(t[1] .. string.sub('00000' .. t[2], -6))
if now > tonumber(ARGV[1]) then return {now, -1, tonumber(ARGV[#ARGV])} end
local held = redis.call('GET', KEYS[1])
if not held then return {now, 0, tonumber(ARGV[#ARGV])} end
return {now, 1, redis.call('PTTL', KEYS[1]), held, tonumber(ARGV[#ARGV])})"};

/// The same without the value, which may be a stranger's, of any size: for those who wait.
inline constexpr redis_script redis_look_at_ttl{R"(local t = redis.call('TIME')
local now = tonumber(t[1] .. string.sub('00000' .. t[2], -6))
if now > tonumber(ARGV[1]) then return {now, -1, tonumber(ARGV[#ARGV])} end
if not redis.call('GET', KEYS[1]) then return {now, 0, tonumber(ARGV[#ARGV])} end
return {now, 1, redis.call('PTTL', KEYS[1]), tonumber(ARGV[#ARGV])})"};

} // namespace amux::detail
