// SPDX-License-Identifier: BSL-1.0
#pragma once

/// The version as one number to compare with: major * 10000 + minor * 100 + patch.
#define AMUX_VERSION 100

/// The version as people write it.
#define AMUX_VERSION_STRING "0.1.0"
