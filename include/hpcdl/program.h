#pragma once
// The program: a step, recorded once, as plain data. It contains no memory and no addresses: it refers to what it works
// on by name.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/op_info.h"
#include "hpcdl/stream.h"

namespace hpcdl {

// Queues of records. The records of one lane run in their order; a record waits for a record of another lane only if
// both touch the same memory (instance.h). On a GPU each lane is a stream. On a CPU only records whose op can start
// them and leave them to other threads keep their lane; all others run one after the other.

enum class Lane : std::uint8_t {
  compute,
  weights,  // gradients of weights, next to those of activations
  reduce,   // sums of gradients over ranks
  gather,   // values that other ranks have updated
};
inline constexpr int kLanes = 4;

inline std::string_view lane_name(Lane lane) {
  constexpr std::string_view names[kLanes] = {"compute", "weights", "reduce", "gather"};
  return names[static_cast<int>(lane)];
}

/// Where the memory of a slot comes from.
enum class SlotKind : std::uint8_t {
  temp,   // arena; lives from the first to the last record that touches it
  input,  // arena; written by the caller before a run, lives through the whole program
  kept,   // arena; lives from its first record to the end, so that the caller can read it
  state,  // known by its name: parameters, gradients, optimizer state, KV cache; an Instance binds its memory
};

/// The purpose of a slot, where code depends on it.
enum class SlotRole : std::uint8_t {
  data,
  targets,  // an input: the targets of the loss
  scratch,  // memory of one record, which need not write all of it
};

struct Slot {
  Spec spec;
  SlotKind kind = SlotKind::temp;
  std::string name;
  SlotRole role = SlotRole::data;
};

/// How a record uses an operand. `update` reads and writes (accumulated gradients, in-place state).
enum class Access : std::uint8_t { read, write, update };

/// A strided window of a slot. slot < 0: absent.
struct Operand {
  int slot = -1;
  std::int64_t offset = 0;  // elements
  Spec spec;
  Shape strides;
  Access access = Access::read;
};

enum class Phase : std::uint8_t { forward, recompute, backward, update };
inline std::string_view phase_name(Phase p) {
  constexpr std::string_view names[] = {"forward", "recompute", "backward", "update"};
  return names[static_cast<int>(p)];
}

struct Record {
  OpName op;
  std::uint32_t args = 0;      // byte offset into Program::args
  std::uint32_t operands = 0;  // index of the first operand
  std::uint32_t operand_count = 0;
  Lane lane = Lane::compute;
  bool backward = false;  // which of the op's functions
  Phase phase = Phase::forward;
  std::uint32_t scope = 0;    // index into Program::scopes: "layers.3.mlp"
  Cost cost;                  // whole_cost()
  std::uint8_t added_by = 0;  // 1 + index into Program::edits; 0: the recorder
};

/// What has been added to a program after it was recorded (edit.h).
struct AppliedEdit {
  struct Sizes {
    std::uint32_t slots, operands, args, bounds, scopes;
  };
  /// An operand as it was before the edit let it name another slot.
  struct Redirected {
    std::uint32_t operand;  // index into Program::operands
    std::int32_t slot;
    std::int64_t offset;  // elements
  };
  std::string name;
  Sizes before;  // of the tables; what comes after is of this edit and of later ones
  std::vector<Redirected> redirected = {};
};
inline constexpr std::size_t kMostEdits = 255;

struct Program {
  std::vector<Slot> slots;
  std::vector<Operand> operands;
  std::vector<Record> records;
  std::vector<std::byte> args;
  std::vector<std::uint32_t> bounds;  // byte offsets of the Bounds in `args`
  std::vector<std::string> scopes{""};
  std::vector<std::string> autocasts;  // textual descriptions of the policies under which records were pushed
  std::vector<AppliedEdit> edits;      // in order
  Numerics numerics;

  Cost cost() const {
    Cost sum;
    for (const auto& r : records) sum += r.cost;
    return sum;
  }
};

/// What a record of the program costs: what its op states, with the bytes of its operands and exchanges. Scratch does
/// not count: it may stay in a cache.
Cost whole_cost(const Cost& stated, const Program& program, const Record& record);

}  // namespace hpcdl
