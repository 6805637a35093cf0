// SPDX-License-Identifier: BSL-1.0
#pragma once

#if defined(AMUX_STANDALONE_ASIO)
#include <asio/version.hpp>
#define AMUX_ASIO_VERSION ASIO_VERSION
namespace asio {}
namespace amux::detail {
namespace asio = ::asio;
} // namespace amux::detail
#else
#include <boost/asio/version.hpp>
#define AMUX_ASIO_VERSION BOOST_ASIO_VERSION
namespace boost::asio {}
namespace amux::detail {
namespace asio = ::boost::asio;
} // namespace amux::detail
#endif

#if AMUX_ASIO_VERSION < 102600
#error "amux needs Asio 1.26 or newer: Boost 1.81, which Debian 12 has (package libboost1.81-dev)"
#endif
