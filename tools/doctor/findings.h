#pragma once
// What a machine has, what is missing, which feature or speed that costs, and how to fix it.

#include <cstdint>
#include <string>
#include <vector>

#include "hpcdl/machine/machine.h"
#include "hpcdl/machine/roofs.h"
#include "tools/doctor/software.h"

namespace hpcdl::lab {

/// Everything from which findings are made.
struct Facts {
  Machine machine;
  int threads = 0;  // that a pool would use
  Roofs roofs;
  std::vector<Roofs> gpu_roofs;  // of each GPU that this program can use; empty: none, or a build without CUDA
  bool cuda_build = false, cudnn_build = false;  // what this program was built with
  std::int64_t huge_pages_reserved = 0;
  std::int64_t memory_lock = -1, open_files = -1;  // limits of this process; -1: no limit
  std::int64_t disk_free = -1;                     // in the current folder; -1: unknown
  bool infiniband = false;
  GpuFacts gpus;
  Software cuda, nccl, cudnn, cublaslt, cupti, mpi, slurm, python;
  std::string mpi_library;  // the MPI of this build, "Open MPI 4.1.4"; "": none
  std::string slurm_job;    // "job 12, 2 nodes, 4 tasks"; "": not in a job
};

/// Everything but `roofs` and `threads`.
Facts gather_facts(const Places& places);

/// gap: something that limits this machine. absent: something is missing that only some uses need.
enum class State : std::uint8_t { ok, gap, absent };

struct Finding {
  std::string what, value;
  State state = State::ok;
  std::string cost = {}, fix = {};  // empty when ok
};

std::vector<Finding> findings(const Facts& facts);
std::string_view state_name(State s);

}  // namespace hpcdl::lab
