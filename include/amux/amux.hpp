// SPDX-License-Identifier: BSL-1.0
#pragma once

/// \file
/// Everything that needs the standard library alone.

#include <amux/version.hpp>
#include <amux/lock_mode.hpp>
#include <amux/source_location.hpp>
#include <amux/error.hpp>
#include <amux/clock.hpp>
#include <amux/metric.hpp>
#include <amux/scheduler.hpp>
#include <amux/context.hpp>
#include <amux/task.hpp>
#include <amux/when_all.hpp>
#include <amux/spawn.hpp>
#include <amux/task_group.hpp>
#include <amux/event_loop.hpp>
#include <amux/manual_event_loop.hpp>
#include <amux/sync_wait.hpp>
#include <amux/loop_thread.hpp>
#include <amux/threading.hpp>
#include <amux/counting.hpp>
#include <amux/tracing.hpp>
#include <amux/snapshot.hpp>
#include <amux/asyncmux_options.hpp>
#include <amux/asyncmux.hpp>
#include <amux/deadlock_detector.hpp>
#include <amux/long_holds.hpp>
#include <amux/lock_backend.hpp>
#include <amux/memory_backend.hpp>
#include <amux/lock_options.hpp>
#include <amux/lock_hooks.hpp>
#include <amux/lease_counters.hpp>
#include <amux/acquired_lock.hpp>
#include <amux/distributed_lock.hpp>
#include <amux/redlock.hpp>
