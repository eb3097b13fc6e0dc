#pragma once
// Kernels under test, from any source.

#include <functional>
#include <string>
#include <vector>

#include "hpcdl/kernel_abi.h"

namespace hpcdl::lab::verify {

/// What is known about a kernel without running any of its code.
struct Subject {
  std::string contract, name;
  std::uint32_t dtypes = 0, flags = 0;
  std::int32_t device_kind = HPCDL_ON_CPU;
  /// Called in the process that runs it.
  std::function<const hpcdl_kernel&()> load;
};

/// Our ops, one subject for each contract and instruction set of this CPU.
std::vector<Subject> own_kernels();
/// Our ops on a GPU, one subject for each contract. None in a build without CUDA.
std::vector<Subject> own_gpu_kernels();

/// The kernels of a shared library. It is also loaded in a separate process. Throws Error if it is not a
/// library, exports no table, or has another version of the ABI.
std::vector<Subject> library_kernels(const std::string& path);

/// Kernels that are part of this program.
Subject linked_kernel(const hpcdl_kernel& kernel);

}  // namespace hpcdl::lab::verify
