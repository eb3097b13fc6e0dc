#pragma once
// Five stages of checks, and one of timing, for any kernel that follows kernel_abi.h.

#include <array>
#include <chrono>
#include <functional>
#include <optional>

#include "hpcdl/machine/roofs.h"
#include "tools/verify/case.h"
#include "tools/verify/subject.h"

namespace hpcdl::lab::verify {

struct StageResult {
  std::int32_t cases = 0, declined = 0;
  double seconds = 0;
};

struct Fault {
  Case at;  // the smallest sizes that still fail
  std::string what;
  bool alone = true;  // the case also fails alone, in a new process
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
  std::chrono::milliseconds patience{20000};  // seconds for one call of a kernel
  int processes = 2;                          // at a time
  Roofs gpu;                                  // for subjects that run on one: gpu_roofs()
};

/// Roofs of the first GPU, measured by a child process: a process that has used a GPU cannot start others that do.
/// Throws Error if there is none.
Roofs gpu_roofs();

/// Verifies all subjects, each in a child process; the calling process must have only one thread. `done` is called with
/// each verdict. A kernel fails at its first fault.
std::vector<Verdict> verify(const std::vector<Subject>& subjects, const Roofs& roofs, const Options& options,
                            const std::function<void(const Verdict&, std::size_t done)>& done = {});

/// The shortest possible time in seconds, with data in the fastest cache that was measured.
double least_seconds(const Contract& contract, const Problem& problem, const Roofs& roofs);

}  // namespace hpcdl::lab::verify
