#pragma once
// Whether the records of a program are such as the recorder writes: asked of programs from files.

#include <span>

#include "hpcdl/core/error.h"
#include "hpcdl/program/program.h"
#include "hpcdl/program/valid.h"

namespace hpcdl {

/// A record of an op outside the protocol of typed ops (Graph::emit), as its check_record() sees it.
class RawRecord {
 public:
  RawRecord(std::string_view op, std::span<const Operand> operands, std::span<const std::byte> args)
      : op_(op), operands_(operands), args_(args) {}

  std::size_t count() const { return operands_.size(); }
  void require_count(std::int64_t n) const {
    require(std::ssize(operands_) == n, op_, "takes {} operands, got {}", n, operands_.size());
  }
  /// Of operand i; absent where that is.
  Spec spec(std::size_t i) const { return operands_[i].slot < 0 ? Spec() : operands_[i].spec; }
  /// The same, of a tensor without gaps between its rows.
  Spec contiguous(std::size_t i) const {
    const auto& o = operands_[i];
    require(o.slot < 0 || o.strides == contiguous_strides(o.spec.shape), op_, "operand {} is not contiguous", i);
    return spec(i);
  }
  /// The arguments, which `more` bytes follow.
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

/// Error where a record has operands or arguments that its op cannot have been recorded with.
void check_records(const Program& program);

}  // namespace hpcdl
