#pragma once
// The interface of a model for a training step: the inputs of a micro-batch, a loss, and the tensors that the optimizer
// updates and files store.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/values.h"
#include "hpcdl/nn/context.h"
#include "hpcdl/nn/sharing.h"
#include "hpcdl/state/table.h"

namespace hpcdl::models {

/// One of the tensors that the caller of a pass fills.
struct InputSpec {
  std::string name;
  Spec spec;
  SlotRole role = SlotRole::data;
};

/// The results of a pass over a micro-batch.
struct PassOutputs {
  Var loss;          // SUM of the losses of its targets, one f32
  Var correct = {};  // number of targets that are the model's first choice, one f32; absent if the model does not count
  /// What this rank could not send to the ranks that have its experts (nn::ForwardOptions::expert_rows), one f32; absent
  /// if everything fits. Unless it is 0 on all ranks, the pass has to be run again with more room.
  Var dropped = {};
};

class Trainable {
 public:
  virtual ~Trainable();

  /// The inputs of a micro-batch of `batch` samples, in the order in which pass() takes them. `length` is the sequence
  /// length; for images the model knows the size.
  virtual std::vector<InputSpec> inputs(std::int64_t batch, std::int64_t length, const nn::ForwardOptions& o) const = 0;
  virtual PassOutputs pass(Graph& g, std::span<const Var> inputs, const nn::ForwardOptions& o) const = 0;
  /// Writes config.json and safetensors of `dtype`, each atomically, with PyTorch's names and shapes. It writes the
  /// values on the host, so call fetch() first. If ranks share the model, all must call it, and the first one writes.
  virtual void save(const std::filesystem::path& folder, DType dtype = DType::f32) const = 0;
  /// How ranks share the layers; null if one rank computes all.
  virtual const nn::Sharing* sharing() const { return nullptr; }

  /// The table of everything that the model and its training keep in memory.
  StateTable& state() const { return *state_; }
  std::span<const StateEntry> parameters() const { return state_->parameters(); }
  /// Tensors that are saved but not trained: running statistics, counters.
  std::span<const StateEntry> buffers() const { return state_->buffers(); }
  /// Over all ranks that share the layers.
  std::int64_t parameter_count() const { return state_->parameter_count(); }

  /// Created without a seed: programs can be recorded, but not run.
  bool described() const { return state_->described(); }
  /// Bytes that its tensors take, or would take, on its device.
  virtual std::int64_t bytes() const { return state_->bytes(); }

  /// Moves parameters and gradients (uninitialised) to the device of `s`, where programs recorded from now on run.
  /// Before any program has been recorded; mapped weights stay mapped and are copied once.
  virtual void to_device(const Stream& s) { moved()->to_device(s, {}); }
  Device device() const { return state_->device(); }
  /// From now on the gradient of a parameter is in where(parameter): memory of the caller, contiguous, with the
  /// parameter's spec and device. Old values are lost. Call it after to_device() and before recording a program.
  /// shares: f32, of FlatLayout::share_elements, if the values are divided and gradients are there only while a pass
  /// runs: afterwards, those of updated() lie in it.
  void place_gradients(const std::function<Tensor(const StateEntry&)>& where, const Tensor& shares = {}) {
    moved()->place_gradients(where, shares);
  }
  /// Of a model that was made with Values::later, unless it has been divided.
  void fill() { moved()->fill(); }
  /// See StateTable::divide().
  void divide(std::optional<FlatLayout> layout) { moved()->divide(std::move(layout)); }
  /// See StateTable::keep_on_host().
  void keep_on_host(const StateTable::Choice& values, const StateTable::Choice& with_all = nullptr) {
    moved()->keep_on_host(values, with_all);
  }
  /// See StateTable::move_to_disk().
  void move_to_disk(const std::filesystem::path& folder, const std::function<bool(const StateEntry&)>& moves) {
    moved()->move_to_disk(folder, moves);
  }
  /// See StateTable::divide_frozen().
  void divide_frozen(std::span<const FlatLayout::Place> places, std::int64_t share_bytes) {
    moved()->divide_frozen(places, share_bytes);
  }
  /// That memory goes away: no parameter has a gradient until the next place_gradients() or own_gradients().
  void forget_gradients() { moved()->forget_gradients(); }
  /// Moves gradients that were placed elsewhere back into memory of the model. Their values are lost.
  void own_gradients() { moved()->own_gradients(); }
  /// Adds a copy of `type` (bf16 or f16) to every matrix in own memory that products read; its values are unset until
  /// round_copies(). Programs that are recorded from now on and compute in that type read the copy, with the same
  /// bits. Call it after to_device(). Without memory, they are enough to record a program.
  void keep_copies(DType type, bool memory = true) { moved()->keep_copies(type, memory); }
  /// Rounds all values into their copies. The optimizer does the same when it writes the values.
  void round_copies(Stream& s) const { state_->round_copies(s); }
  /// Brings StateEntry::host up to date with `memory`, and the other way. Does nothing on a CPU for tensors that files
  /// hold in the layout of memory.
  void fetch(const Stream& s) const { state_->fetch(s); }
  void store(const Stream& s) const { state_->store(s); }
  /// Its inference passes, shared by all evaluations and generators.
  ProgramCache& programs() const { return *programs_; }
  /// Records that a training pass has been run, for counters among the buffers.
  void count_pass() const { state_->count_pass(); }

 protected:
  explicit Trainable(std::unique_ptr<StateTable> table) : state_(std::move(table)) {}
  Trainable(Trainable&&) noexcept;
  Trainable& operator=(Trainable&&) noexcept;

  /// The table, before its memory moves.
  StateTable* moved() {
    programs_->clear();
    return state_.get();
  }

  std::unique_ptr<StateTable> state_;

 private:
  std::unique_ptr<ProgramCache> programs_ = std::make_unique<ProgramCache>();
};

}  // namespace hpcdl::models
