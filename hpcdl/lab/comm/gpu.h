#pragma once
// Collectives between GPUs, timed as graphs of several calls: the time of launching from the host is excluded for all
// sides.

#include "hpcdl/lab/comm/bench.h"

namespace hpcdl::lab {

/// auto and native (NCCL), and for all_reduce the kernels that write into peers' memory, if they can.
std::vector<CommSide> gpu_sides(const comm::Group& g, const CommCase& c, const Stream& s);

/// Collective, like bench_collective(); `s` is a stream of this rank's GPU.
std::vector<CommResult> bench_on_gpus(const comm::Group& g, const Stream& s, const CommCase& c,
                                      const std::vector<CommSide>& sides, const CommOptions& options);

}  // namespace hpcdl::lab
