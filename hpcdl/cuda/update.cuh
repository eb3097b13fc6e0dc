#pragma once
// Common code of optimizers: one launch over all parameters, each with its gradient, its state and perhaps a 16-bit
// copy, in its own types, with several accesses of a thread under way at a time.

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/cuda/many_tensors.cuh"

namespace hpcdl::cuda {

struct Update {
  static constexpr int threads = 256, packs = 2, lanes = 4;  // packs of 4 elements that a thread has under way
  static constexpr std::int64_t per_turn = threads * packs * lanes,
                                small = 1 << 23;  // elements; fewer than `small` are spread over more blocks
  static constexpr unsigned char decays = 1, bf16_value = 2, bf16_gradient = 4, f16_copy = 8;

  template <int kOperands> using Table = TensorTable<kOperands, 400>;  // 20 of the 32 KB that a launch can carry

  /// Beginning of pack k of this thread in the turn at `turn`, and how much of it lies before `end`.
  static __device__ std::int64_t place(std::int64_t turn, int k) {
    return turn + (k * threads + static_cast<int>(threadIdx.x)) * lanes;
  }
  static __device__ int left(std::int64_t place, std::int64_t end) {
    return static_cast<int>(end - place < lanes ? end - place : lanes);
  }

  /// Stores the new value, and its copy if there is one.
  template <class P>
  static __device__ void store_value(P* p, void* copy, unsigned char flags, std::int64_t at, const Lanes<lanes>& out,
                                     int n) {
    store(p + at, out, n);
    if (copy && flags & f16_copy) store(static_cast<f16*>(copy) + at, out, n);
    else if (copy) store(static_cast<bf16*>(copy) + at, out, n);
  }

  /// f.template operator()<P, G>(share) with the types of this block's parameter and gradient.
  template <class Table, class F> static __device__ void on_share(const Table& table, std::int64_t per_block, F&& f) {
    const TensorShare share(table, per_block);
    const bool value16 = table.flags[share.i] & bf16_value, gradient16 = table.flags[share.i] & bf16_gradient;
    if (value16) gradient16 ? f.template operator()<bf16, bf16>(share) : f.template operator()<bf16, float>(share);
    else gradient16 ? f.template operator()<float, bf16>(share) : f.template operator()<float, float>(share);
  }

  /// launch(table, blocks, elements of a block). Operands of a tensor: value, gradient, ..., copy.
  template <int kOperands, class Launch>
  static void over_tensors(const Grad* tensors, const std::uint8_t* decaying, std::int64_t count, Launch&& launch) {
    const std::int64_t per_block = total_size(tensors, count, kOperands) < small ? per_turn : 4 * per_turn;
    const auto flags = [&](const Grad* t, std::int64_t i) {
      return static_cast<unsigned char>((decaying[i] ? decays : 0) | (t[0].dtype() == DType::bf16 ? bf16_value : 0) |
                                        (t[1].dtype() == DType::bf16 ? bf16_gradient : 0) |
                                        (t[kOperands - 1].dtype() == DType::f16 ? f16_copy : 0));
    };
    for_tables<Table<kOperands>>(tensors, count, per_block, flags,
                                 [&](const auto& table, unsigned blocks) { launch(table, blocks, per_block); });
  }
};

}  // namespace hpcdl::cuda
