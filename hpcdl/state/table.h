#pragma once
// The single list of what a model and its training keep in memory between two steps: values, their 16-bit copies,
// gradients, moments of the optimizer, running statistics. A module defines its parameters (nn::Param); the table
// defines where each parameter and everything that belongs to it lies. Checkpoints, model files, the memory plan and
// the optimizer read this table.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/box.h"
#include "hpcdl/buffer.h"
#include "hpcdl/core/pinned.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/io/scratch_file.h"
#include "hpcdl/nn/param.h"
#include "hpcdl/state/flat_layout.h"

namespace hpcdl {

enum class StateRole : unsigned char {
  value,     // of a parameter
  frozen,    // the value of a frozen parameter, or what replaces that of a quantised one
  copy,      // the value rounded to 16 bits, which products read
  gradient,  // of the value
  moment,    // what the optimizer keeps for the value
  buffer,    // saved, not trained: running statistics
  counter,   // the same as one i64, always in host memory
};

struct StateEntry {
  std::string name;  // in programs and in files: "wte.weight", "wte.weight.grad", "wte.weight.m"
  StateRole role = StateRole::value;
  nn::Param* param = nullptr;  // the parameter that it is, or that it belongs to
  Part part = {};              // its part of the whole tensor
  Tensor memory;               // where programs use it, on the device of the entry
  /// In host memory in the layout of files, which are read into it and written from it. On a CPU it is `memory`, unless
  /// files store the dims in another order. Absent if no file holds the entry.
  Tensor host = {};
  Tensor staged = {};         // in host memory in the order of `memory`: `host`, unless files have another order
  bool counted = true;        // its memory is there between two steps, and not that of another entry
  bool on_host = false;       // it stays in host memory, whatever the device of the model
  bool all_on_host = false;   // of a value: so do its gradient and its copy
  std::int64_t on_disk = -1;  // the byte of the file of its group with which it begins; -1: it lies in memory
  // For a value; null if there is none.
  const StateEntry *gradient = nullptr, *copy = nullptr;

  /// The spec of the whole tensor, as files hold it.
  Spec whole() const { return whole_spec(host ? host.spec() : memory.spec(), part, name); }
};

/// Entries with a common lifetime, and the memory that was made for them, or the file in which some of them lie.
struct StateGroup {
  std::vector<StateEntry> entries;
  Buffer memory;
  Buffer host;  // the same on the host, for moments on a GPU
  std::shared_ptr<io::ScratchFile> file;
};

/// Where moments lie: with the model, on the host whatever its device, or on a disk, in a file in that folder.
struct MomentPlace {
  bool on_host = false;
  std::optional<std::filesystem::path> folder = {};
  bool coded = false;  // as 8-bit codes (ops/adamw8), with the model on a CPU: a signed moment and one that is not
};

/// The entries that files hold.
std::vector<io::NamedTensor> stored(std::span<const StateEntry> entries);

/// Writes elements of what this rank has of a value, counted in the order of its memory, to `to`: f32, one dim.
using ValueSource = std::function<void(const StateEntry& value, Interval elements, const Tensor& to)>;

class StateTable {
 public:
  /// The parameters of a model in the order of its visit(). They must stay in place for the lifetime of this.
  explicit StateTable(std::vector<nn::Param*> params) : params_(std::move(params)) {}
  StateTable(const StateTable&) = delete;
  StateTable& operator=(const StateTable&) = delete;

  const std::vector<nn::Param*>& params() const { return params_; }
  /// From now on entries have specs and no memory: enough to record programs and to compute how much memory they would
  /// need.
  void describe() { described_ = true; }
  bool described() const { return described_; }
  /// The entries of all parameters and buffers in own memory: one block of values, one of gradients. Frozen parameters
  /// are left to add_value(). With a source, values have specs and no memory before they are filled: by divide() with
  /// what this rank keeps of them, or by fill(). Enough to record programs.
  void allocate(bool with_gradients, ValueSource source = nullptr);
  /// Gives values their memory and reads them from the source of allocate(), if that has not been done.
  void fill();
  /// Alternatively, adds one parameter whose value is in memory of the caller; or one with tensors that stand
  /// for it, "NAME.packed" and so on.
  void add_value(nn::Param& param, const Tensor& memory);
  void add_frozen(nn::Param& param, std::string_view ending, const Tensor& memory);
  /// The entries of parameters that were added in memory of the caller lie in `where(entry)` from now on, of the same
  /// spec; on the host, before a program is recorded.
  void move_values(const std::function<Tensor(const StateEntry&)>& where);

  /// Leaves this rank those parameters and buffers for which mine(param) is true; other ranks have the rest. Counters
  /// stay. On the host, before a program is recorded.
  void keep(const std::function<bool(const nn::Param&)>& mine);
  /// What keep() has left out, without memory: values, buffers, frozen tensors.
  std::span<const StateEntry> missing() const { return missing_; }
  /// Calls f() while parameters() and buffers() are those of the whole model: StateEntry::host of a missing one is
  /// where(entry).
  void with_missing(const std::function<Tensor(const StateEntry&)>& where, const std::function<void()>& f);

  std::span<const StateEntry> parameters() const { return values_.entries; }
  std::span<const StateEntry> frozen() const { return frozen_.entries; }
  /// The values that the optimizer of this rank updates: parameters(), or the pieces of them that divide() gives it,
  /// one dim each, in the same order.
  std::span<const StateEntry> updated() const { return layout_ ? pieces_.entries : values_.entries; }
  /// Buffers and counters.
  std::span<const StateEntry> buffers() const { return buffers_.entries; }
  /// Calls f(entry) for all entries.
  template <class F> void for_each(F&& f) const {
    for (const auto* group : groups())
      for (const StateEntry& e : group->entries) f(e);
  }
  /// Parameters, or the pieces of them that this rank has, then buffers.
  std::vector<io::NamedTensor> model_files() const;
  /// Lets StateEntry::host of the values that are not kept whole be where(entry), for files of whole tensors; without
  /// memory it is absent again.
  void lend_whole_values(const std::function<Tensor(const StateEntry&)>& where);
  /// Gives a program that will be recorded the memory of the entries that its modules name.
  void bind(Graph& g) const;

  /// Trained elements, over all ranks that share the layers.
  std::int64_t parameter_count() const;
  /// The same with frozen elements.
  std::int64_t element_count() const;
  Device device() const { return device_; }
  /// Bytes that the model's entries and the gaps between them use, or would use, on its device: without moments, and
  /// without gradients in memory of other owners.
  std::int64_t bytes() const;

  // See models::Trainable. `others`: tensors that programs read besides the entries. elsewhere(entry): memory on the
  // device that another owner fills; absent: this moves the entry.
  void to_device(const Stream& s, const std::vector<Tensor*>& others,
                 const std::function<Tensor(const StateEntry&)>& elsewhere = nullptr);
  void place_gradients(const std::function<Tensor(const StateEntry&)>& where, const Tensor& shares = {});
  void forget_gradients();
  void own_gradients();
  void keep_copies(DType type, bool memory = true);
  void round_copies(Stream& s) const;
  void fetch(const Stream& s) const;
  void store(const Stream& s) const;
  /// The parts of fetch(): queues the copies of what passes change (buffers), or of the rest, which only updates change;
  /// and puts what files store in another order into it: what was `copied`, when the copies are done, or what has been on
  /// the host before.
  void queue_fetch(const Stream& s, bool of_passes) const;
  void order_for_files(bool copied) const;
  /// Host memory of this table that fetch() writes: not that of mapped files.
  std::vector<const Buffer*> fetched_memory() const;
  void count_pass() const;

  /// Moves the values into one flat block, on the host, and lets updated() be the pieces of this rank. Other ranks
  /// update the rest of a value and of its copy, and send it. Of values that the layout does not keep whole, only these
  /// pieces remain, and files hold these. Before a program is recorded; without a layout, updated() are the whole values
  /// again.
  void divide(std::optional<FlatLayout> layout);
  bool divided() const { return layout_.has_value(); }
  /// Keeps of each frozen() the bytes `mine` alone, at byte `share` of a block of `share_bytes`. Passes that read frozen
  /// tensors must gather them. On the host, before a program is recorded.
  void divide_frozen(std::span<const FlatLayout::Place> places, std::int64_t share_bytes);
  /// Lets the values stay in host memory for which values(entry) and which are in own memory; null: none. No program may
  /// read them. with_all(entry): its gradient and its copy stay there, too, and programs reach all three through moves
  /// alone (hpcdl/offload). Before the model moves to a GPU, which then reaches that memory, since it is page-locked.
  using Choice = std::function<bool(const StateEntry&)>;
  void keep_on_host(const Choice& values, const Choice& with_all = nullptr);
  /// Moves the values and frozen tensors for which moves(entry) into files in that folder: of values in the order of
  /// parameters(), each at the byte where its first moment begins in the file of moments on a disk. Their `memory` is the
  /// mapped file from then on: right for any use, but slow. What lay on a disk before and does not move comes back. On a
  /// CPU, before a program is recorded. Throws Error if the disk has too little room.
  void move_to_disk(const std::filesystem::path& folder, const std::function<bool(const StateEntry&)>& moves);
  /// Their files; null where there are none.
  std::shared_ptr<io::ScratchFile> value_file() const { return values_.file; }
  std::shared_ptr<io::ScratchFile> frozen_file() const { return frozen_.file; }
  /// Those bytes; without memory if this is only described.
  Tensor frozen_shares() const;
  /// The flat blocks of whole values and of whole copies, and this rank's shares of the others, if there are any;
  /// without memory if this is only described. Precondition: divided().
  Tensor value_block() const;
  Tensor copy_block() const;
  Tensor value_shares() const;
  Tensor copy_shares() const;

  /// Moments of zeros, f32, for everything updated(): "NAME.m" for each of `names`, one parameter after the other; where
  /// they are coded, each with its scales, "NAME.m.scale", except those of small tensors (moment_blocks.h). They
  /// belong to the table as long as the caller holds them. On a disk, those of one name follow each other in the order of
  /// updated(), and each begins with a page. Throws Error if the disk has too little room.
  std::shared_ptr<const StateGroup> add_moments(std::span<const std::string_view> names, const MomentPlace& place = {});

 private:
  class Cursor;
  std::vector<const StateGroup*> groups() const;
  Buffer block(std::int64_t bytes, Device device = {}) const { return described_ ? Buffer() : Buffer(bytes, device); }
  DType copy_type() const { return copies_.entries.empty() ? DType::none : copies_.entries.front().memory.dtype(); }
  void upload_flat(const Stream& s);
  void upload_frozen(const Stream& s);
  Buffer move(const Stream& s, const std::vector<Tensor*>& list, bool with_values) const;
  StateGroup& group_of(const nn::Param& p);
  void add(nn::Param& param, const Tensor& memory);
  void tell_modules();
  void make_pieces();
  void place_on_disk(StateGroup& moments, std::size_t names, const std::filesystem::path& folder) const;
  void move_group(StateGroup& group, const std::filesystem::path& folder,
                  const std::function<bool(const StateEntry&)>& moves);
  void settle_files() const;
  void read_values(const StateEntry& e, std::int64_t from, const Tensor& to) const;
  Buffer move_gradients(const Stream& s);
  void move_to_flat_block();
  void keep_in(StateGroup& group, const std::function<bool(const nn::Param&)>& mine);

  std::vector<nn::Param*> params_;
  StateGroup values_, buffers_, frozen_, gradients_, copies_;
  ValueSource source_;  // of values that have no memory yet
  Buffer files_;        // of entries that files store in another order
  std::vector<StateEntry> missing_;
  std::vector<std::weak_ptr<const StateGroup>> moments_;
  std::optional<FlatLayout> layout_;
  StateGroup pieces_, gradient_pieces_, copy_pieces_;
  StateGroup frozen_pieces_;  // empty unless frozen entries are divided
  std::int64_t frozen_bytes_ = 0;
  Tensor gradient_shares_;  // absent: pieces of gradients are parts of them
  bool elsewhere_ = false;  // gradients do not lie in own memory
  bool described_ = false;
  Device device_;
  Buffer on_device_;                  // a copy of everything that programs read
  Buffer values_on_device_;           // of whole values, if they lie in a flat block
  Buffer shares_, shares_on_device_;  // of values that are not whole
  Buffer gradients_on_host_, copies_on_host_;
  PinnedRange pinned_values_, pinned_gradients_, pinned_copies_;  // of those that stay there
};

}  // namespace hpcdl
