#pragma once
// The one list of what a model and its training keep in memory between two steps: values, their 16-bit copies,
// gradients, moments of the optimizer, running statistics. A module says what a parameter is (nn::Param); the table
// says where it and everything that belongs to it lies. Checkpoints, model files, the memory plan and the optimizer
// read this table.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/core/box.h"
#include "hpcdl/core/buffer.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/nn/param.h"

namespace hpcdl {

enum class StateRole : unsigned char {
  value,     // of a parameter
  frozen,    // what stands for the value of a quantised one
  copy,      // the value rounded to 16 bits, which products read
  gradient,  // of the value
  moment,    // what the optimizer keeps for the value
  buffer,    // saved, not trained: running statistics
  counter,   // the same as one i64, always in host memory
};

struct StateEntry {
  std::string name;  // in programs and in files: "wte.weight", "wte.weight.grad", "wte.weight.m"
  StateRole role = StateRole::value;
  nn::Param* param = nullptr;  // what it is, or belongs to
  Part part = {};              // what it is of the whole tensor
  Tensor memory;               // where programs find it; its device is its place
  /// In host memory as files hold it, which files are read into and written from. On a CPU it is `memory`, unless files
  /// hold the dims in another order. Absent for what no file holds.
  Tensor host = {};
  Tensor staged = {};  // in host memory in the order of `memory`: `host`, unless files have another
  // Of a value; null where there is none.
  const StateEntry *gradient = nullptr, *copy = nullptr;

  /// As the holders together have it, and files hold it.
  Spec whole() const { return whole_spec(host ? host.spec() : memory.spec(), part, name); }
};

/// Entries that come and go together, and the memory that was made for them.
struct StateGroup {
  std::vector<StateEntry> entries;
  Buffer memory;
  Buffer host;  // the same on the host, of moments on a GPU
};

/// Those that files hold.
std::vector<io::NamedTensor> stored(std::span<const StateEntry> entries);

class StateTable {
 public:
  /// The parameters of a model in the order of its visit(). They must stay where they are as long as this lives.
  explicit StateTable(std::vector<nn::Param*> params) : params_(std::move(params)) {}
  StateTable(const StateTable&) = delete;
  StateTable& operator=(const StateTable&) = delete;

  const std::vector<nn::Param*>& params() const { return params_; }
  /// From now on entries have specs and no memory: enough to record programs and to say what they would take.
  void describe() { described_ = true; }
  bool described() const { return described_; }
  /// The entries of all parameters and buffers in own memory: one block of values, one of gradients.
  void allocate(bool with_gradients);
  /// Instead, one after the other, a parameter whose value is in memory of the caller; or one with tensors that stand
  /// for it, "NAME.packed" and so on.
  void add_value(nn::Param& param, const Tensor& memory);
  void add_frozen(nn::Param& param, std::string_view ending, const Tensor& memory);

  std::span<const StateEntry> parameters() const { return values_.entries; }
  /// Buffers and counters.
  std::span<const StateEntry> buffers() const { return buffers_.entries; }
  /// f(entry) for all of them.
  template <class F> void for_each(F&& f) const {
    for (const auto* group : groups())
      for (const StateEntry& e : group->entries) f(e);
  }
  /// Parameters, then buffers.
  std::vector<io::NamedTensor> model_files() const;
  /// Tells a program that is about to be recorded where what its modules name lies.
  void bind(Graph& g) const;

  /// Trained elements, over all ranks that share the layers.
  std::int64_t parameter_count() const;
  Device device() const { return device_; }
  /// What the model's entries and the gaps between them take, or would take, where it lies: without moments, and
  /// without gradients in memory of others.
  std::int64_t bytes() const;

  // As class models::Trainable says. `others`: what programs read besides the entries.
  void to_device(const Stream& s, const std::vector<Tensor*>& others);
  void place_gradients(const std::function<Tensor(const StateEntry&)>& where);
  void forget_gradients();
  void own_gradients();
  void keep_copies(DType type);
  void round_copies(Stream& s) const;
  void fetch(const Stream& s) const;
  void store(const Stream& s) const;
  void count_pass() const;

  /// Moments of zeros, f32, for every parameter: "NAME.m" for each of `names`, one parameter after the other, where the
  /// model lies. They are part of the table as long as the caller holds them.
  std::shared_ptr<const StateGroup> add_moments(std::span<const std::string_view> names);

 private:
  class Cursor;
  std::vector<const StateGroup*> groups() const;
  Buffer block(std::int64_t bytes, Device device = {}) const { return described_ ? Buffer() : Buffer(bytes, device); }
  Buffer move(const Stream& s, const std::vector<Tensor*>& list, bool with_values) const;
  StateGroup& group_of(const nn::Param& p);
  void add(nn::Param& param, const Tensor& memory);
  void tell_modules();

  std::vector<nn::Param*> params_;
  StateGroup values_, buffers_, frozen_, gradients_, copies_;
  Buffer files_;  // of entries that files hold in another order
  std::vector<std::weak_ptr<const StateGroup>> moments_;
  bool elsewhere_ = false;  // gradients do not lie in own memory
  bool described_ = false;
  Device device_;
  Buffer on_device_;  // a copy of everything that programs read
};

}  // namespace hpcdl
