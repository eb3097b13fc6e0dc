#pragma once
// How much memory a run takes, known before it takes any: its programs are recorded and planned over imagined memory.

#include <functional>
#include <string>
#include <vector>

#include "hpcdl/core/available_memory.h"
#include "hpcdl/models/trainable.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {

/// Bytes on the device of the run.
struct MemoryLedger {
  std::int64_t weights = 0;  // with buffers, and rounded copies
  std::int64_t gradients = 0, optimizer = 0;
  std::int64_t activations = 0;  // the arena
  std::int64_t staged = 0;       // batches that wait; of a GPU: on the host, not counted
  std::int64_t other = 0;        // tables, copies in the order of files, images that are kept
  std::string peak;  // the record at which most activations live: "record 34 (linear, backward, layers.3.mlp)"
  std::int64_t total() const { return weights + gradients + optimizer + activations + staged + other; }
};

/// What may change and the samples of a step stay the same.
struct MemoryChange {
  std::int64_t batch = 1, accumulate = 1;
  bool recompute = false;
  Compute dtype = Compute::f32;
  bool operator==(const MemoryChange&) const = default;
};

struct MemoryPlan {
  MemoryChange change;
  MemoryLedger ledger;
};

/// The ledger of a step with these options in so many micro-batches; `make` creates the model.
MemoryLedger plan_memory(const std::function<std::unique_ptr<models::Trainable>()>& make, const StepOptions& options,
                         std::int64_t micro_batches, Device device);

/// The run as it is, and what would make it smaller: by one change each (recompute; the largest micro-batch that fits;
/// bf16), then, where none of them fits, by several. The first alternative that fits is the smallest change.
class MemoryAdvice {
 public:
  using Plan = std::function<MemoryLedger(const MemoryChange&)>;
  MemoryAdvice(const MemoryChange& now, const Room& room, const Plan& plan);
  /// Plans the alternatives.
  void look_for_smaller(const Plan& plan);

  bool fits() const { return now_.ledger.total() <= room_.bytes; }
  const MemoryPlan& now() const { return now_; }
  const Room& room() const { return room_; }
  const std::vector<MemoryPlan>& alternatives() const { return alternatives_; }
  /// Null where none fits.
  const MemoryPlan* smallest_change() const;
  /// As words on the command line: "--train.batch=2 --train.accumulate=4".
  std::string words(const MemoryChange& change) const;
  /// Everything in one sentence.
  std::string verdict() const;
  /// Both as tables; lines.
  std::string text() const;

 private:
  bool try_change(const MemoryChange& change, const Plan& plan);
  bool try_smaller_batches(MemoryChange change, const Plan& plan);

  Room room_;
  MemoryPlan now_;
  std::vector<MemoryPlan> alternatives_;
};

}  // namespace hpcdl::train
