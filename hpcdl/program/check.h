#pragma once
// Checks that the records of a program could have been written by the recorder: for programs from files.

#include <span>

#include "hpcdl/core/error.h"
#include "hpcdl/op_info.h"
#include "hpcdl/program.h"

namespace hpcdl {

/// A record of an op outside the protocol of typed ops (Graph::emit), as passed to its check_record().
class RawRecord {
 public:
  RawRecord(std::string_view op, std::span<const Operand> operands, std::span<const std::byte> args)
      : op_(op), operands_(operands), args_(args) {}

  std::size_t count() const { return operands_.size(); }
  void require_count(std::int64_t n) const {
    require(std::ssize(operands_) == n, op_, "takes {} operands, got {}", n, operands_.size());
  }
  /// The spec of operand i; absent if the operand is.
  Spec spec(std::size_t i) const { return operands_[i].slot < 0 ? Spec() : operands_[i].spec; }
  /// The same, and requires a tensor without gaps between its rows.
  Spec contiguous(std::size_t i) const {
    const auto& o = operands_[i];
    require(o.slot < 0 || o.strides == contiguous_strides(o.spec.shape), op_, "operand {} is not contiguous", i);
    return spec(i);
  }
  /// The arguments, followed by `more` bytes.
  template <class T> const T& args(std::int64_t more = 0) const {
    require(more >= 0 && std::size(args_) >= sizeof(T) && static_cast<std::uint64_t>(more) <= args_.size() - sizeof(T),
            op_, "{} bytes of arguments are too few", args_.size());
    return *reinterpret_cast<const T*>(args_.data());
  }

 private:
  std::string_view op_;
  std::span<const Operand> operands_;
  std::span<const std::byte> args_;
};

/// Throws Error if a record has operands or arguments that its op cannot have been recorded with.
void check_records(const Program& program);

}  // namespace hpcdl
