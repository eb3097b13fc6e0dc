#pragma once
// Elements of several tensors that AdamW updates together, while their moments are in memory.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/state/table.h"

namespace hpcdl {

/// A value and its moments.
struct MovedTensor {
  const StateEntry *value = nullptr, *m = nullptr, *v = nullptr;
};

struct UpdatePiece {
  const MovedTensor* tensor;
  std::int64_t begin, count;  // of its elements
  std::int64_t place;         // where they begin in the memory through which the group passes, in elements
};
using UpdateGroup = std::vector<UpdatePiece>;

inline double operations_of(const UpdateGroup& group) {
  double n = 0;
  for (const auto& p : group) n += 14.0 * static_cast<double>(p.count);
  return n;
}

/// Elements [begin, begin + count) of a contiguous variable, in one dim.
inline Operand window(const Var& v, std::int64_t begin, std::int64_t count, Access access) {
  auto o = v.operand();
  o.offset += begin;
  o.spec = {{count}, v.dtype()};
  o.strides = contiguous_strides(o.spec.shape);
  o.access = access;
  return o;
}

/// The arguments of AdamW for a group, after `head`: one byte per tensor says whether it decays.
template <class Head> std::vector<std::byte> args_of(const UpdateGroup& group, const Head& head) {
  std::vector<std::byte> bytes(sizeof head + group.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  for (std::size_t i = 0; i < group.size(); ++i)
    bytes[sizeof head + i] = static_cast<std::byte>(group[i].tensor->value->param->decay ? 1 : 0);
  return bytes;
}

}  // namespace hpcdl
