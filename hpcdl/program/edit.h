#pragma once
// Edits of a finished program: records that move data are inserted between those that compute. What an edit adds to the
// tables of the program comes after their ends. Of a record that is there it can only change in which slot a tensor
// lies, and notes what it was, so strip() can undo all of it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/program.h"

namespace hpcdl {

class Edit {
 public:
  /// `name` says what the edit does.
  Edit(Program program, std::string name);

  /// The program as it was; its tables but that of records have what has been added so far.
  const Program& program() const { return program_; }
  /// Returns its number.
  int add_slot(Slot slot);
  std::uint32_t add_scope(std::string scope);
  /// Inserts a record of Raw before record `at` of the program as it was, or at its end. `record` says its lane, phase
  /// and scope. Records with the same `at` keep the order of the calls.
  template <class Raw>
  void insert(std::size_t at, Record record, std::span<const Operand> operands, typename Raw::RecordArgs args) {
    static_cast<void>(known_op<Raw>);
    clear_padding(args);
    Bound* bound = bound_in(args);
    if (bound) bound->at = nullptr;  // programs hold names
    record.op = Raw::name;
    insert(at, record, operands, &args, sizeof args, bound);
  }
  /// The same of a typed op, outside of differentiation: operands as its forward takes them.
  template <class Op>
  void insert_op(std::size_t at, Record record, std::span<const Operand> operands, typename Op::Args args) {
    static_cast<void>(known_op<Op>);
    clear_padding(args);
    record.op = Op::name;
    insert(at, record, operands, &args, sizeof args, nullptr);
  }
  /// Lets an operand of a record that is there name another slot, which this edit has added, and of whose elements its own begin at `begin`: the same
  /// tensor in other memory.
  void redirect(std::uint32_t operand, int slot, std::int64_t begin);
  /// The edited program. Call it once, at the end.
  Program finish();

 private:
  void insert(std::size_t at, Record record, std::span<const Operand> operands, const void* args,
              std::size_t args_bytes, const Bound* bound);

  Program program_;
  std::vector<std::pair<std::size_t, Record>> inserted_;
};

/// Appends the arguments of a record, and returns where they begin. `bound`: within them; null if they have none.
std::uint32_t append_args(Program& program, const void* args, std::size_t bytes, const Bound* bound);

/// The program before its last edit, to the byte; the same program if it has none.
Program strip(Program program);

}  // namespace hpcdl
