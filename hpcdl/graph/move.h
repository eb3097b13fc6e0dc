#pragma once
// Copies between host and device memory as records, which run beside computation: on Lane::gather what a device will
// read, on Lane::reduce what it has written.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/program/edit.h"

namespace hpcdl {

/// Pairs of contiguous operands of one spec: a copy, and what it is a copy of.
class Moves {
 public:
  void add(Operand to, Operand from) {
    to.access = Access::write, from.access = Access::read;
    operands_.push_back(to), operands_.push_back(from);
  }
  /// Records them, if there are any. On a GPU the side on the host must be page-locked (Instance).
  void record(Graph& g, Lane lane, Phase phase) const;
  /// Inserts them before record `before` of a program that is edited, in its phase and scope.
  void insert(Edit& edit, std::size_t before, Lane lane) const;

 private:
  std::vector<Operand> operands_;
};

/// Bytes that these records of a program copy.
std::int64_t moved_bytes(const Program& program);

}  // namespace hpcdl
