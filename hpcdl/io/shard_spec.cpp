#include "hpcdl/io/shard_spec.h"

#include <algorithm>

#include "hpcdl/core/describe.h"
#include "hpcdl/io/copy_elements.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {
namespace {

/// One stretch of a dim: where it lies in the whole tensor, and where in a part's own.
struct Stretch {
  std::int64_t begin, length, at;
};

std::vector<Stretch> stretches(const ShardSpec& shard, int dim, std::int64_t whole) {
  if (shard.dim != dim) return {{0, whole, 0}};
  std::vector<Stretch> out;
  std::int64_t at = 0;
  for (const Range& r : shard.pieces) {
    out.push_back({r.begin, r.length, at});
    at += r.length;
  }
  return out;
}

/// f(stretch of both, offset in a, offset in b)
template <class F> void for_each_common(const std::vector<Stretch>& a, const std::vector<Stretch>& b, F f) {
  for (const auto& x : a)
    for (const auto& y : b) {
      const std::int64_t begin = std::max(x.begin, y.begin), end = std::min(x.begin + x.length, y.begin + y.length);
      if (begin < end) f(end - begin, x.at + begin - x.begin, y.at + begin - y.begin);
    }
}

std::int64_t whole_length(const View& x, const ShardSpec& shard, int dim) {
  return shard.dim == dim ? shard.whole : x[dim];
}

/// Copies along one dim, or two of which each part has one.
std::int64_t copy_along(const Tensor& to, const ShardSpec& to_shard, const View& from, const ShardSpec& from_shard,
                        int dim, int other) {
  const std::int64_t whole = std::max(whole_length(to, to_shard, dim), whole_length(from, from_shard, dim));
  std::int64_t copied = 0;
  for_each_common(stretches(to_shard, dim, whole), stretches(from_shard, dim, whole),
                  [&](std::int64_t n, std::int64_t at, std::int64_t from_at) {
                    const Tensor part = narrow(to, dim, {at, n});
                    const View from_part = narrow(from, dim, {from_at, n});
                    if (other >= 0) {
                      copied += copy_along(part, to_shard, from_part, from_shard, other, -1);
                    } else {
                      copy_elements(part, from_part);
                      copied += part.size();
                    }
                  });
  return copied;
}

}  // namespace

Spec whole_spec(const Spec& local, const ShardSpec& shard, const std::string& name) {
  if (shard.all()) return local;
  require(shard.dim < local.shape.rank(), "io", "tensor {}: split along dim {}, but its shape is {}", shown(name),
          shard.dim, to_string(local.shape));
  std::int64_t held = 0;
  for (const Range& r : shard.pieces) {
    require(r.begin >= 0 && r.length >= 0 && r.length <= shard.whole && r.begin <= shard.whole - r.length, "io",
            "tensor {}: a piece [{}, {}) does not lie in the {} elements of dim {}", shown(name), r.begin,
            r.begin + r.length, shard.whole, shard.dim);
    held += r.length;
  }
  require(held == local.shape[shard.dim], "io", "tensor {}: its pieces of dim {} are {} elements, its shape is {}",
          shown(name), shard.dim, held, to_string(local.shape));
  Spec whole = local;
  whole.shape[shard.dim] = shard.whole;
  return whole;
}

Spec local_spec(const Spec& whole, const ShardSpec& shard) {
  Spec local = whole;
  if (shard.all()) return local;
  local.shape[shard.dim] = 0;
  for (const Range& r : shard.pieces) local.shape[shard.dim] += r.length;
  return local;
}

Tensor narrow(const Tensor& x, int dim, Range range) {
  Spec spec = x.spec();
  spec.shape[dim] = range.length;
  return Tensor(x.ptr<std::byte>() + range.begin * x.strides()[dim] * dtype_bytes(x.dtype()), spec, x.strides(),
                x.device());
}

View narrow(const View& x, int dim, Range range) {
  Spec spec = x.spec();
  spec.shape[dim] = range.length;
  return View(x.ptr<std::byte>() + range.begin * x.strides()[dim] * dtype_bytes(x.dtype()), spec, x.strides(),
              x.device());
}

std::int64_t copy_common(const Tensor& to, const ShardSpec& to_shard, const View& from, const ShardSpec& from_shard) {
  const int a = to_shard.dim, b = from_shard.dim;
  if (a < 0 && b < 0) {
    copy_elements(to, from);
    return to.size();
  }
  return copy_along(to, to_shard, from, from_shard, std::max(a, b), a >= 0 && b >= 0 && a != b ? std::min(a, b) : -1);
}

}  // namespace hpcdl::io
