#pragma once
// Which part of a tensor a rank holds, and how parts fit together.

#include <cstdint>
#include <string>
#include <vector>

#include "hpcdl/core/tensor.h"

namespace hpcdl::io {

/// Elements [begin, begin + length) of one dim.
struct Range {
  std::int64_t begin = 0, length = 0;
  auto operator<=>(const Range&) const = default;
};

/// A default ShardSpec is all of the tensor. Otherwise the rank's own tensor is the whole one, but along `dim` it holds
/// only `pieces`, one after the other: a fused (3 * C, C) weight of q, k and v over two ranks has whole = 3C and on
/// rank 1 the pieces [C/2, C), [3C/2, 2C), [5C/2, 3C).
struct ShardSpec {
  int dim = -1;            // -1: all
  std::int64_t whole = 0;  // length of dim in the whole tensor
  std::vector<Range> pieces;

  bool all() const { return dim < 0; }
  auto operator<=>(const ShardSpec&) const = default;
};

/// The spec of the whole tensor of which a rank holds `local`. Throws Error when `shard` does not describe such a
/// tensor; `name` is for the message.
Spec whole_spec(const Spec& local, const ShardSpec& shard, const std::string& name);
/// The other way.
Spec local_spec(const Spec& whole, const ShardSpec& shard);

/// View of elements [range) of one dim.
View narrow(const View& x, int dim, Range range);
Tensor narrow(const Tensor& x, int dim, Range range);

/// Copies the elements that both parts hold of one whole tensor, any strides. Returns how many there were.
std::int64_t copy_common(const Tensor& to, const ShardSpec& to_shard, const View& from, const ShardSpec& from_shard);

}  // namespace hpcdl::io
