#pragma once
// How much memory a run takes, known before it takes any: its programs are recorded and planned for a model that is
// only described.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/core/available_memory.h"
#include "hpcdl/models/trainable.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/step_programs.h"

namespace hpcdl::train {

/// Bytes on the device of the run. Tensors are planned; all from `workspaces` on is estimated, and rather too high
/// than too low: see memory_held.test.cpp.
struct MemoryLedger {
  std::int64_t weights = 0;  // with buffers, and rounded copies
  std::int64_t gradients = 0, optimizer = 0;
  std::int64_t activations = 0;  // the arena
  std::int64_t staged = 0;       // batches that wait; of a GPU: on the host, not counted
  std::int64_t other = 0;        // tables, copies in the order of files, images that are kept
  std::int64_t workspaces = 0;   // scratch memory of kernels: of each thread, of each stream of a GPU
  std::int64_t saving = 0;       // on the host: tensors that are put together for the files of a checkpoint
  std::int64_t process = 0;      // recorded programs, threads, code; of a GPU: what the libraries keep there
  std::int64_t copy = 0;     // of a CPU: what a thread writes of a checkpoint; only where there is room, not counted
  std::int64_t on_host = 0;  // of a GPU: state in host memory, not counted
  std::int64_t on_disk = 0;  // of a CPU: state on a disk, not counted
  offload::MovedActivations moved;  // activations that wait on the host or on a disk, not counted
  Tier moved_to = Tier::none;
  std::string peak;  // the record at which most activations live: "record 34 (linear, backward, layers.3.mlp)"
  std::int64_t tensors() const { return weights + gradients + optimizer + activations + staged + other; }
  std::int64_t total() const { return tensors() + workspaces + saving + process; }
  /// Outside of that: in host memory beside a GPU, or on a disk.
  std::int64_t bytes_on(Tier tier) const;
};

/// What may change while the samples of a step stay the same.
struct MemoryChange {
  std::int64_t batch = 1, accumulate = 1;
  bool recompute = false;
  Compute dtype = Compute::f32;
  int zero = 0;
  Tier optimizer = Tier::none, parameters = Tier::none;  // where the state of the former lies, and where the latter
  bool operator==(const MemoryChange&) const = default;
};

struct MemoryPlan {
  MemoryChange change;
  MemoryLedger ledger;
};

/// The ranks and threads that share the work, as far as memory is concerned.
struct Workers {
  int threads = 1, ranks = 1;
};

/// Fills in what is estimated.
void add_estimates(MemoryLedger& ledger, const Workers& workers, Device device);

/// The ledger of a rank's step with these options in so many micro-batches, of a model that is only described. Of what is
/// estimated, the recorded programs alone.
MemoryLedger plan_memory(models::Trainable& model, const StepOptions& options, std::int64_t micro_batches,
                         Device device);

/// Room in host memory beside a GPU, and in the folder of a disk beside a CPU; unset: nothing can lie there.
struct OtherRooms {
  std::optional<Room> host = {}, disk = {};
  // What could lie there.
  bool optimizer_on_host = true, optimizer_on_disk = true, parameters_on_host = false;
  const std::optional<Room>& of(Tier tier) const { return tier == Tier::disk ? disk : host; }
  bool take_optimizer(Tier tier) const {
    return of(tier) && (tier == Tier::disk ? optimizer_on_disk : optimizer_on_host);
  }
};

/// The run as it is, and what would make it smaller: by one change each (ranks that divide more; recompute; the largest
/// micro-batch that fits; bf16), then, where none of them fits, by several. The first alternative that fits is the smallest change.
class MemoryAdvice {
 public:
  using Plan = std::function<MemoryLedger(const MemoryChange&)>;
  /// shareable: ranks can share the model's layers (parallel.tp). ranks: that share the batch.
  /// elsewhere: where state of the optimizer can lie besides.
  MemoryAdvice(const MemoryPlan& now, const Room& room, bool shareable = true, int ranks = 1,
               const OtherRooms& elsewhere = {})
      : room_(room), elsewhere_(elsewhere), now_(now), shareable_(shareable), ranks_(ranks) {}
  /// Plans the alternatives.
  void look_for_smaller(const Plan& plan);

  /// Whether there is memory for the run, and for so many bytes besides.
  bool fits(std::int64_t more = 0) const { return fits(now_.ledger, more); }
  bool fits(const MemoryLedger& ledger, std::int64_t more = 0) const {
    return ledger.total() + more <= room_.bytes && !lacking(ledger);
  }
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
  /// The place besides memory that has too little room; empty: all have enough.
  std::optional<Tier> lacking(const MemoryLedger& ledger) const;
  bool try_change(const MemoryChange& change, const Plan& plan);
  bool try_smaller_batches(MemoryChange change, const Plan& plan);

  Room room_;
  OtherRooms elsewhere_;
  MemoryPlan now_;
  bool shareable_;
  int ranks_;
  std::vector<MemoryPlan> alternatives_;
};

}  // namespace hpcdl::train
