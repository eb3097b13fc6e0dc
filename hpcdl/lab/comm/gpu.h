#pragma once
// Collectives between GPUs, timed as graphs of several calls: launching from the host is left out, for all sides alike.

#include "hpcdl/lab/comm/bench.h"

namespace hpcdl::lab {

/// auto and native (NCCL), and for all_reduce the kernels that write into peers' memory, where they can.
std::vector<CommSide> gpu_sides(const comm::Group& g, const CommCase& c, const Stream& s);

/// Collective, as bench_collective(); `s` is a stream of this rank's GPU.
std::vector<CommResult> bench_on_gpus(const comm::Group& g, const Stream& s, const CommCase& c,
                                      const std::vector<CommSide>& sides, const CommOptions& options);

}  // namespace hpcdl::lab
