#pragma once
// The axes of a mesh of ranks, as records name them. What ranks do along an axis is recorded with ops/exchange; which
// ranks these are is bound when an Instance is made.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/core/stream.h"
#include "hpcdl/core/tensor.h"
#include "hpcdl/program/bound.h"

namespace hpcdl {

struct Program;
struct Record;

/// The ranks of an axis, which an Instance binds. All calls are done when they return or, on a GPU, in the order of the
/// stream. `tensor` is what the exchanged tensor is called when ranks ask each other what they are doing.
class Ranks {
 public:
  virtual ~Ranks() = default;
  /// In place: the sum or the maximum over all ranks, the same bits on each.
  virtual void all_reduce(Stream& s, const Tensor& x, bool maximum, std::string_view tensor) const = 0;
  /// The rank's part of the sum of `all`.
  virtual void reduce_scatter(Stream& s, const Tensor& mine, const View& all, std::string_view tensor) const = 0;
  /// The parts of all ranks, in their order.
  virtual void all_gather(Stream& s, const Tensor& all, const View& mine, std::string_view tensor) const = 0;
};

/// What a record says of an axis: its name, how many ranks it has, and what the exchanged tensor is called.
struct Axis : Bound {
  int ranks = 1;
  char tensor[40] = {};

  Axis() = default;
  /// `of` is what the name is bound to; it must outlive the Instance.
  Axis(std::string_view called, int size, const Ranks* of);

  /// The same axis for a tensor of another name.
  Axis with(std::string_view what) const;
  /// Arguments from a file: names end, and the axis has as many ranks as its name says.
  bool valid() const;
  /// Where it is bound.
  const Ranks& bound() const { return *static_cast<const Ranks*>(at); }
};

enum class ExchangeKind : std::uint8_t { all_reduce, reduce_scatter, all_gather };

/// What a record sends and receives.
struct Exchange {
  ExchangeKind kind = ExchangeKind::all_reduce;
  std::string axis;  // "tp of 4"
  int ranks = 1;
  std::int64_t bytes = 0;  // of the whole tensor: what is reduced or gathered
  bool waits = true;       // false: it goes on after the record has ended

  /// Bytes that a rank sends at least, as ring algorithms do: the mean over the ranks.
  double wire_bytes() const {
    return (kind == ExchangeKind::all_reduce ? 2.0 : 1.0) * static_cast<double>(bytes) * (ranks - 1) / ranks;
  }
};

/// Empty where a record exchanges nothing.
std::vector<Exchange> exchanges(const Program& program, const Record& record);
/// Exchange::wire_bytes() of all records of one axis ("tp of 4"), or of all axes.
double wire_bytes(const Program& program, std::string_view axis = {});

}  // namespace hpcdl
