#pragma once
// Which elements of a whole tensor one holder has, and their positions in its memory. A holder is a rank, or a file
// that a rank has written. Every way to divide a tensor is a list of boxes: rows, columns, the columns of q, of k and
// of v that a rank has, a flat range of elements, a flat range of a rank's columns.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/tensor.h"

namespace hpcdl {

/// Elements [begin[d], begin[d] + extent[d]) of every dim d of the whole tensor.
struct Box {
  Shape begin, extent;
  std::int64_t at = 0;  // its first element in the holder's memory

  std::int64_t size() const { return extent.size(); }
  bool operator==(const Box&) const = default;
};

/// [begin, end) of one dim, or of the elements of a tensor in row-major order.
struct Interval {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

/// The part of a whole tensor that one holder has. A default Part is everything. Otherwise the holder's own tensor has
/// the shape `local`: either the number of dims of the whole one, and every box is a box of it too, or one dim,
/// and the elements of a box lie in it at box.at + sum of index[d] * strides[d].
struct Part {
  Shape whole, local;
  Shape strides;  // of every box, in elements of the holder's tensor in row-major order
  std::vector<Box> boxes;

  bool all() const { return local.rank() == 0; }
  bool operator==(const Part&) const = default;

  /// Consecutive intervals of one dim: columns of q, of k and of v.
  static Part along(const Shape& whole, int dim, std::span<const Interval> intervals);
  /// The elements `range`, in row-major order, of the part `of` of the whole tensor: at most three boxes of a matrix.
  /// The holder's tensor has one dim. Precondition: `of` is everything, or its tensor has the dims of the whole one.
  static Part flat(const Shape& whole, Interval range, const Part& of = {});
};

/// The spec of the whole tensor; `local` is the spec of the tensor that holds `part` of it. Throws Error, which calls
/// it `name`, unless every box lies in the whole tensor and in the local one, and the boxes cover the local tensor.
Spec whole_spec(const Spec& local, const Part& part, std::string_view name);

/// The elements that both boxes have; a box without elements if there are none. `at` is 0.
Box common(const Box& a, const Box& b);
/// The elements of `box` that none of the others has, as boxes that do not overlap. Their `at` is that of `box`.
std::vector<Box> outside(const Box& box, std::span<const Box> others);

/// Copies the elements that both holders have of one whole tensor, any strides. Returns their number.
/// Precondition: whole_spec() accepts both.
std::int64_t copy_common(const Tensor& to, const Part& to_part, const View& from, const Part& from_part);

/// The boxes of a part, also of a default one, without empty boxes.
std::vector<Box> boxes_of(const Shape& whole, const Part& part);

/// A region of a tensor that is not held exactly once.
struct Flaw {
  Box region;
  int times = 0;  // how often it is held
};
/// The first one, or nothing if the boxes cover the whole tensor exactly once. Time: about linear in their number.
std::optional<Flaw> find_flaw(const Shape& whole, std::span<const Box> boxes);

/// "dim 0 [4, 8)", and further dims after "x"; only dims that the box does not cover. Empty if it is everything.
std::string to_string(const Box& box, const Shape& whole);

/// f(element in the holder's memory, element in the whole tensor, count): runs of elements that are contiguous in both.
/// Precondition: `part` is not everything.
template <class F> void for_each_run(const Part& part, F&& f) {
  const Shape whole = contiguous_strides(part.whole);
  const int rank = part.whole.rank();
  for (const Box& box : part.boxes) {
    if (box.size() == 0) continue;
    int inner = rank;  // dims from here on are one run
    std::int64_t run = 1;
    while (inner > 0 && part.strides[inner - 1] == run && whole[inner - 1] == run) run *= box.extent[--inner];
    const auto walk = [&](const auto& self, int dim, std::int64_t at, std::int64_t in_whole) -> void {
      if (dim == inner) return f(at, in_whole, run);
      for (std::int64_t i = 0; i < box.extent[dim]; ++i)
        self(self, dim + 1, at + i * part.strides[dim], in_whole + (box.begin[dim] + i) * whole[dim]);
    };
    std::int64_t first = 0;
    for (int d = inner; d < rank; ++d) first += box.begin[d] * whole[d];
    walk(walk, 0, box.at, first);
  }
}

}  // namespace hpcdl
