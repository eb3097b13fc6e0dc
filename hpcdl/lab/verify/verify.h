#pragma once
// Five stages and a stopwatch for any kernel that keeps to kernel_abi.h.

#include <array>
#include <chrono>
#include <functional>
#include <optional>

#include "hpcdl/lab/roofs.h"
#include "hpcdl/lab/verify/case.h"
#include "hpcdl/lab/verify/subject.h"

namespace hpcdl::lab::verify {

struct StageResult {
  std::int32_t cases = 0, declined = 0;
  double seconds = 0;
};

struct Fault {
  Case at;  // the smallest that still fails
  std::string what;
  bool alone = true;  // the case fails by itself, in a fresh process
};

struct Verdict {
  Subject subject;
  std::array<StageResult, kStages> stages;
  std::optional<Fault> fault;
  double seconds = 0;

  int cases() const;
  bool ok() const { return !fault; }
};

struct Options {
  std::uint64_t seed = 1;
  std::optional<Stage> only;
  std::chrono::milliseconds patience{20000};  // for one call of a kernel
  int processes = 2;                          // at a time
  Roofs gpu;                                  // for subjects that run on one: gpu_roofs()
};

/// Roofs of the first GPU, found by a child process: one that has used a GPU cannot start others that do. Throws Error
/// where there is none.
Roofs gpu_roofs();

/// Verifies all subjects, each in a child process; the calling process must have no thread but its own. `done` hears of
/// each verdict as it comes. A kernel fails at its first fault.
std::vector<Verdict> verify(const std::vector<Subject>& subjects, const Roofs& roofs, const Options& options,
                            const std::function<void(const Verdict&, std::size_t done)>& done = {});

/// Seconds that no implementation can be faster than, with data in the fastest cache that was measured.
double least_seconds(const Contract& contract, const Problem& problem, const Roofs& roofs);

}  // namespace hpcdl::lab::verify
