#include "hpcdl/ops/sgd/sgd.h"

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/cuda/many_tensors.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256, kPacks = 2;  // packs of 4 elements that a thread has under way
constexpr std::int64_t kPerTurn = kThreads * kPacks * 4, kSmall = 1 << 23;  // elements; fewer than kSmall are spread over more blocks
constexpr unsigned char kDecays = 1, kBf16Value = 2, kBf16Gradient = 4, kF16Copy = 8;

using Table = TensorTable<Sgd::kOperands, 400>;

/// Elements [begin, end) of tensor i. All operands of a turn are under way before the first is used.
template <class P, class G> __device__ void update(const Table& table, int i, std::int64_t begin, std::int64_t end, const Sgd::Step& s) {
  constexpr int N = 4;
  P* p = static_cast<P*>(table.pointer[0][i]);
  const G* g = static_cast<const G*>(table.pointer[1][i]);
  float* m = static_cast<float*>(table.pointer[2][i]);
  void* copy = table.pointer[3][i];
  const float decay = table.flags[i] & kDecays ? s.weight_decay : 0.0f;
  for (std::int64_t turn = begin; turn < end; turn += kPerTurn) {
    Pack<P, N> pp[kPacks];
    Pack<G, N> gg[kPacks];
    Pack<float, N> mm[kPacks];
    const auto place = [&](int k) { return turn + (k * kThreads + static_cast<int>(threadIdx.x)) * N; };
    const auto count = [&](int k) { return static_cast<int>(end - place(k) < N ? end - place(k) : N); };
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      gg[k] = read<N>(g + place(k), 0, count(k), G{});
      if (m) mm[k] = read<N>(static_cast<const float*>(m + place(k)), 0, count(k), 0.0f);
      pp[k] = read<N>(static_cast<const P*>(p + place(k)), 0, count(k), P{});
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int n = count(k);
      if (n <= 0) break;
      const auto value = widen(pp[k]), grad = fma(Lanes<N>(decay), value, widen(gg[k]) * Lanes<N>(s.grad_scale));
      auto by = grad;
      if (m) {
        const auto mi = s.first ? grad : fma(Lanes<N>(s.momentum), widen(mm[k]), Lanes<N>(s.rest) * grad);
        store(m + place(k), mi, n);
        by = fma(Lanes<N>(s.look_ahead), mi, Lanes<N>(s.along) * grad);
      }
      const auto out = value - Lanes<N>(s.lr) * by;
      store(p + place(k), out, n);
      if (copy && table.flags[i] & kF16Copy) store(static_cast<f16*>(copy) + place(k), out, n);
      else if (copy) store(static_cast<bf16*>(copy) + place(k), out, n);
    }
  }
}

__global__ void __launch_bounds__(kThreads) sgd_kernel(const __grid_constant__ Table table, const StepParams* params, Sgd::Args args, std::int64_t per_block) {
  if (params->skip) return;
  const Sgd::Step step = Sgd::step(args, *params);
  const int i = table.find(blockIdx.x);
  const std::int64_t begin = std::int64_t{blockIdx.x - table.first_block[i]} * per_block, end = begin + per_block < table.size[i] ? begin + per_block : table.size[i];
  const bool value16 = table.flags[i] & kBf16Value, gradient16 = table.flags[i] & kBf16Gradient;
  if (value16) gradient16 ? update<bf16, bf16>(table, i, begin, end, step) : update<bf16, float>(table, i, begin, end, step);
  else gradient16 ? update<float, bf16>(table, i, begin, end, step) : update<float, float>(table, i, begin, end, step);
}

}  // namespace

void sgd(Stream& s, const Grad* tensors, const std::uint8_t* decays, std::int64_t count, const Sgd::Args& args) {
  std::int64_t elements = 0;
  for (std::int64_t i = 0; i < count; ++i) elements += tensors[i * Sgd::kOperands].size();
  const std::int64_t per_block = elements < kSmall ? kPerTurn : 4 * kPerTurn;
  for (std::int64_t first = 0; first < count; first += Table::max) {
    Table table;
    unsigned blocks = 0;
    for (std::int64_t i = first; i < count && table.count < Table::max; ++i) {
      const Grad* t = tensors + i * Sgd::kOperands;
      const int k = table.count++;
      table.size[k] = t[0].size();
      for (int p = 0; p < Sgd::kOperands; ++p) table.pointer[p][k] = t[p].data();
      table.flags[k] = static_cast<unsigned char>((decays[i] ? kDecays : 0) | (t[0].dtype() == DType::bf16 ? kBf16Value : 0) |
                                                  (t[1].dtype() == DType::bf16 ? kBf16Gradient : 0) | (t[3].dtype() == DType::f16 ? kF16Copy : 0));
      table.first_block[k] = blocks;
      blocks += blocks_for(t[0].size(), per_block);
    }
    table.first_block[table.count] = blocks;
    if (blocks == 0) continue;
    sgd_kernel<<<blocks, kThreads, 0, queue(s)>>>(table, s.kernel_params(), args, per_block);
    launched("sgd");
  }
}

}  // namespace hpcdl::cuda
