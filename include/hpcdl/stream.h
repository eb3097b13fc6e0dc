#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "hpcdl/device.h"
#include "hpcdl/pool.h"
#include "hpcdl/tensor.h"

namespace hpcdl {

// Changes the value of a variable temporarily.

/// Sets it for its own lifetime.
template <class T> class ScopedValue {
 public:
  ScopedValue(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~ScopedValue() { variable_ = std::move(before_); }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& variable_;
  T before_;
};

// The freedom that the kernels of a program have in how they compute.

/// How a GPU forms matrix products of f32 operands. Everything is stored, and added up, in f32 either way.
enum class F32Products : std::uint8_t {
  exact,  // of all 24 bits
  tf32,   // of operands cut to TF32's 11 significant bits on their way into the tensor cores: several times as fast
};

/// A property of a program, which its Instance hands to kernels by the stream. By default every op repeats its bits
/// from run to run.
struct Numerics {
  /// Convolutions of more than one pixel, products too small to matter, and CPUs are exact in either case.
  F32Products products = F32Products::exact;
  /// A GPU may add up in another order each time, where that is faster (gradients of attention).
  bool atomic_sums = false;
  /// A row of a result has the bits that it has alone, however many other rows there are. CPUs only.
  bool row_invariant = false;

  bool operator==(const Numerics&) const = default;
};

class Ways;      // a table of the ways in which calls are computed: hpcdl/core/ways.h
class WayNotes;  // hears which ways are used

/// Values that change from step to step. Kernels read them, records do not: a program need not be recorded again
/// because the learning rate changed. On a GPU they lie in device memory (Stream::kernel_params).
struct StepParams {
  std::uint64_t seed = 0;  // key of every counter-based draw
  std::int64_t step = 0;   // optimizer steps done so far (0-based number of this one)
  float lr = 0;            // learning rate of this step
  float grad_scale = 1;    // every gradient is multiplied by it before use (1 / (loss scale * valid tokens))
  float clip_factor = 1;   // written by the global-norm op
  float grad_norm = 0;     // written by the global-norm op
  std::int32_t skip = 0;   // non-zero: the optimizer changes nothing
};

/// An ordered queue of work on one device, with the threads (CPU) or the native queue (GPU) that run it. A copy is the
/// same queue. On a CPU work is done when the call returns.
class Stream {
 public:
  explicit Stream(Pool& pool, StepParams* params = nullptr) : pool_(&pool), params_(params) {}
  /// A queue on `device`; `pool` runs host work for it. Throws if the build or the machine has no such
  /// device.
  Stream(Device device, Pool& pool, StepParams* params = nullptr);
  /// GPU: a queue that another owner has, by its cudaStream_t. `mirror`: step parameters in device memory, if they are
  /// needed. Both must outlive this.
  static Stream borrowed(Device device, void* native, Pool& pool, StepParams* mirror = nullptr);

  Device device() const { return device_; }
  Pool& pool() const { return *pool_; }
  StepParams& params() const { return *params_; }
  void set_params(StepParams* p) { params_ = p; }
  /// What kernels that are queued now keep to; captured work keeps what it was captured with.
  const Numerics& numerics() const { return numerics_; }
  void set_numerics(const Numerics& n) { numerics_ = n; }
  /// The ways of calls that are queued now, where their ops have several; null, or no entry: the built-in choice.
  /// Captured work keeps its ways.
  const std::shared_ptr<const Ways>& ways() const { return ways_; }
  void set_ways(std::shared_ptr<const Ways> ways) { ways_ = std::move(ways); }
  /// Where the ways that calls use are noted; null: they are not noted. The notes must outlive these calls.
  WayNotes* way_notes() const { return way_notes_; }
  void set_way_notes(WayNotes* notes) { way_notes_ = notes; }
  /// Computes from now on as `other` does: takes over its numerics, ways and notes.
  void compute_like(const Stream& other) {
    numerics_ = other.numerics_, ways_ = other.ways_, way_notes_ = other.way_notes_;
  }
  /// GPU: the cudaStream_t.
  void* native() const { return native_.get(); }
  /// Throws on a GPU: for work that only has CPU code.
  void require_cpu() const;
  /// Waits until all work queued so far is done; throws its errors.
  void synchronize() const;

  /// The address from which kernels read the parameters of the step: params() itself, or its mirror on the GPU.
  StepParams* kernel_params() const { return device_.is_cuda() ? mirror_.get() : params_; }
  /// GPU: queues a copy of params() to the mirror, at the beginning of every run of a program.
  void push_params() const;
  /// GPU: waits, and reads back the values that kernels wrote (clip_factor, grad_norm, skip).
  void pull_params() const;

 private:
  Device device_;
  Pool* pool_ = nullptr;
  StepParams* params_ = nullptr;
  std::shared_ptr<void> native_;
  std::shared_ptr<StepParams> mirror_;
  Numerics numerics_;
  std::shared_ptr<const Ways> ways_;
  WayNotes* way_notes_ = nullptr;
  friend struct WithNumerics;
};

/// Sets the numerics of a stream for its own lifetime.
struct WithNumerics : private ScopedValue<Numerics> {
  WithNumerics(Stream& s, const Numerics& n) : ScopedValue(s.numerics_, n) {}
};

/// A point in a stream that another stream of the same device can wait for. On a CPU there is nothing to wait for.
class Event {
 public:
  void record(const Stream&);
  void wait(const Stream&) const;

 private:
  std::shared_ptr<void> native_;
};

/// Queues a copy of elements of one spec between any two devices; both sides contiguous. A copy to or from pageable
/// host memory is done when the call returns.
void copy(const Stream&, const Tensor& to, const View& from);

/// GPU: work that was queued between begin() and end(), to be launched again as a whole.
class Capture {
 public:
  Capture() = default;
  static void begin(const Stream&);
  static Capture end(const Stream&);
  explicit operator bool() const { return native_ != nullptr; }
  void launch(const Stream&) const;

 private:
  std::shared_ptr<void> native_;
};

/// GPU: what is queued during its lifetime is prepared by the host, but never runs: kernels are loaded, plans of
/// libraries are made, ways are chosen.
class DryRun {
 public:
  explicit DryRun(const Stream&);
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

 private:
  const Stream& stream_;
  int mode_ = 0;  // of the thread before
};

}  // namespace hpcdl
