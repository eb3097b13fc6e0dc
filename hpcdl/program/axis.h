#pragma once
// The axes of a mesh of ranks, as records name them. Exchanges along an axis are recorded with ops/exchange; the ranks
// of an axis are bound when an Instance is made.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/op_info.h"
#include "hpcdl/stream.h"
#include "hpcdl/tensor.h"
#include "hpcdl/ticket.h"

namespace hpcdl {

struct Program;
struct Record;

/// The ranks of an axis, bound by an Instance. All calls are complete when they return or, on a GPU, in the order of
/// the stream. `tensor` names the exchanged tensor in the reports that ranks give about what they are doing.
class Ranks {
 public:
  virtual ~Ranks() = default;
  /// In place: the sum or the maximum over all ranks, with the same bits on each.
  virtual void all_reduce(Stream& s, const Tensor& x, bool maximum, std::string_view tensor) const = 0;
  /// This rank's part of the sum of `all`.
  virtual void reduce_scatter(Stream& s, const Tensor& mine, const View& all, std::string_view tensor) const = 0;
  /// The parts of all ranks, in their order.
  virtual void all_gather(Stream& s, const Tensor& all, const View& mine, std::string_view tensor) const = 0;
  /// Part r of `mine` goes to rank r; part r of `theirs` comes from it. Equal parts, one after the other.
  virtual void all_to_all(Stream& s, const Tensor& theirs, const View& mine, std::string_view tensor) const = 0;
  /// Begins to send `mine` to the rank that comes `distance` places after this one, around the ring of all ranks, and to
  /// receive `theirs` from the one as many places before. Both tensors stay as they are until the ticket is done.
  virtual Ticket rotate(Stream& s, const Tensor& theirs, const View& mine, int distance,
                        std::string_view tensor) const = 0;
};

/// What a record stores about an axis: its name, its number of ranks, and the name of the exchanged tensor.
struct Axis : Bound {
  int ranks = 1;
  char tensor[40] = {};

  Axis() = default;
  /// `of` is the object to which the name is bound; it must outlive the Instance.
  Axis(std::string_view called, int size, const Ranks* of);

  /// The same axis for a tensor with another name.
  Axis with(std::string_view what) const;
  /// For arguments from a file: names are terminated, and the axis has as many ranks as its name says.
  bool valid() const;
  /// The object to which the axis is bound.
  const Ranks& bound() const { return *static_cast<const Ranks*>(at); }
};

enum class ExchangeKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, rotate };
constexpr std::string_view exchange_name(ExchangeKind k) {
  constexpr std::string_view names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "rotate"};
  return names[static_cast<int>(k)];
}

/// What a record sends and receives.
struct Exchange {
  ExchangeKind kind = ExchangeKind::all_reduce;
  std::string axis;  // "tp of 4"
  int ranks = 1;
  std::int64_t bytes = 0;  // of the whole tensor that is reduced or gathered; all_to_all, rotate: of what a rank has

  /// The minimum number of bytes that a rank sends, as with ring algorithms: the mean over the ranks.
  double wire_bytes() const {
    if (kind == ExchangeKind::rotate) return static_cast<double>(bytes);
    return (kind == ExchangeKind::all_reduce ? 2.0 : 1.0) * static_cast<double>(bytes) * (ranks - 1) / ranks;
  }
};

/// Empty if the record exchanges nothing.
std::vector<Exchange> exchanges(const Program& program, const Record& record);
/// Exchange::wire_bytes() of all records of one axis ("tp of 4"), or of all axes.
double wire_bytes(const Program& program, std::string_view axis = {});

}  // namespace hpcdl
