#pragma once
// The loops that measure the roofs of a GPU. Only for builds with CUDA. Each queues its work and returns at
// once.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace hpcdl::gpu {

/// Multiply-adds in registers. Units: "cuda" cores; "mma", the tensor cores through mma.sync as every GPU since sm_80
/// has it; "wgmma", through the instructions of sm_90a, which alone reach their full rate there.
struct Spin {
  const char* unit;
  const char* dtype;
};
const std::vector<Spin>& spins();

/// Queues `rounds` of loop `which` on every multiprocessor; returns the operations (a multiply-add is two). Operands
/// are random: on zeros a chip draws less power and runs faster. `flag`: device memory for one int, left at 0 by a loop
/// that this build does not have for this GPU.
double spin(std::size_t which, int multiprocessors, std::int64_t rounds, int* flag, cudaStream_t s);

/// Accesses to memory that bypass the L1 caches.
enum class Way : std::uint8_t { read, write, copy, update };
const char* way_name(Way w);
/// Queues `repeats` passes over `bytes` (a multiple of 4096) of memory: of x, or for a copy from its first half to its
/// second. Returns the bytes that the passes access, each read and each write counted.
double sweep(Way w, void* x, std::int64_t bytes, std::int64_t repeats, int multiprocessors, cudaStream_t s);
/// Conflict-free 16-byte reads of shared memory by every multiprocessor; returns the bytes.
double read_shared(int multiprocessors, std::int64_t rounds, int* flag, cudaStream_t s);
/// A kernel that does nothing.
void launch_empty(cudaStream_t s);

}  // namespace hpcdl::gpu
