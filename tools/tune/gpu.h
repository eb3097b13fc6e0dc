#pragma once
// The choices on a GPU: products, convolutions, attention, products with 4-bit weights. Without CUDA,
// nothing.

#include <functional>
#include <map>
#include <memory>

#include "hpcdl/instance.h"
#include "tools/compare/gpu_environment.h"
#include "tools/tune/tuner.h"

namespace hpcdl::lab::tune {

/// The GPU's name, its driver and this build.
Identity identity_of(Device device, const std::string& version);

/// Runs and times candidates.
struct Bench {
  Stream stream;
  compare::GpuEnvironment& clock;
  /// Seconds of one call whose operands come from memory.
  double cold(const std::function<void()>& call);
};

/// A choice that a call looked up; makes the operands to tune it.
struct Wish {
  std::string text;  // "gemm bf16 4096x4096x4096"
  std::function<std::unique_ptr<Tunable>(Bench&)> make;
};
using Wishes = std::map<WayKey, Wish>;

/// The choices that the records of a program look up. Nothing is run.
Wishes wishes_of(const Instance& exe, Stream& s);
/// One product with 4-bit weights, inputs bf16.
void wish_int4(Wishes& to, std::int64_t rows, std::int64_t n, std::int64_t k, std::int64_t group);

}  // namespace hpcdl::lab::tune
