#pragma once
// One launch over many tensors of any sizes: their addresses are kernel parameters, so that nothing is
// allocated or copied first and a captured graph keeps them.

#include "hpcdl/cuda/launch.h"

namespace hpcdl::cuda {

/// Up to kMax tensors with kPointers addresses each. Blocks of the grid go to tensors in order: those of tensor i begin
/// at first_block[i].
template <int kPointers, int kMax> struct TensorTable {
  static constexpr int max = kMax, pointers = kPointers;
  int count = 0;
  std::int64_t size[kMax];
  void* pointer[kPointers][kMax];
  unsigned first_block[kMax + 1];
  unsigned char flags[kMax];

  /// The tensor that block b works on.
  __device__ int find(unsigned b) const {
    int lo = 0, hi = count;
    while (hi - lo > 1) {
      const int mid = (lo + hi) / 2;
      if (first_block[mid] <= b) lo = mid;
      else hi = mid;
    }
    return lo;
  }
};

/// Elements [begin, end) of tensor i, for one block.
struct TensorShare {
  int i;
  std::int64_t begin, end;
  template <class Table>
  __device__ TensorShare(const Table& table, std::int64_t per_block)
      : i(table.find(blockIdx.x)),
        begin(std::int64_t{blockIdx.x - table.first_block[i]} * per_block),
        end(begin + per_block < table.size[i] ? begin + per_block : table.size[i]) {}
};

/// Calls launch(table, blocks) for each table until all tensors are done: `count` times Table::pointers operands; the
/// first one gives the size. flags(operands, i) is the byte for tensor i.
template <class Table, class Flags, class Launch>
void for_tables(const Grad* tensors, std::int64_t count, std::int64_t per_block, Flags&& flags, Launch&& launch) {
  for (std::int64_t first = 0; first < count; first += Table::max) {
    Table table;
    unsigned blocks = 0;
    for (std::int64_t i = first; i < count && table.count < Table::max; ++i) {
      const Grad* t = tensors + i * Table::pointers;
      const int k = table.count++;
      table.size[k] = t[0].size();
      for (int p = 0; p < Table::pointers; ++p) table.pointer[p][k] = t[p].data();
      table.flags[k] = flags(t, i);
      table.first_block[k] = blocks;
      blocks += blocks_for(t[0].size(), per_block);
    }
    table.first_block[table.count] = blocks;
    if (blocks > 0) launch(table, blocks);
  }
}

/// Number of elements of all tensors.
inline std::int64_t total_size(const Grad* tensors, std::int64_t count, int operands) {
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < count; ++i) n += tensors[i * operands].size();
  return n;
}

}  // namespace hpcdl::cuda
