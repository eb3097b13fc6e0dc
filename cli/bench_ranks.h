#pragma once

#include <functional>
#include <string>

#include "hpcdl/device.h"
#include "hpcdl/group.h"

namespace hpcdl::cli {

/// Runs `hpcdl VERB` on `threads` ranks that are threads of this process, or, with 0, on those that a launcher
/// has started; a process that was started alone is refused. device: "cpu", or "cuda" for a GPU of each
/// rank. Returns the exit code.
int on_launched_ranks(std::string_view verb, int threads, const std::string& device,
                      const std::function<void(const comm::Group& world, Device device)>& work);
/// The same of `hpcdl bench NAME`.
int on_bench_ranks(std::string_view name, int threads, const std::string& device,
                   const std::function<void(const comm::Group& world, Device device)>& bench);

}  // namespace hpcdl::cli
