#include "hpcdl/ops/sgd/sgd.h"

#include "hpcdl/cuda/update.cuh"

namespace hpcdl::cuda {
namespace {

using Table = Update::Table<Sgd::kOperands>;

/// All operands of an iteration are loaded before the first is used.
template <class P, class G> __device__ void update(const Table& table, const TensorShare& share, const Sgd::Step& s) {
  constexpr int N = Update::lanes, kPacks = Update::packs;
  P* p = static_cast<P*>(table.pointer[0][share.i]);
  const G* g = static_cast<const G*>(table.pointer[1][share.i]);
  float* m = static_cast<float*>(table.pointer[2][share.i]);
  void* copy = table.pointer[3][share.i];
  const unsigned char flags = table.flags[share.i];
  const float decay = flags & Update::decays ? s.weight_decay : 0.0f;
  for (std::int64_t turn = share.begin; turn < share.end; turn += Update::per_turn) {
    Pack<P, N> pp[kPacks];
    Pack<G, N> gg[kPacks];
    Pack<float, N> mm[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t at = Update::place(turn, k);
      const int n = Update::left(at, share.end);
      gg[k] = read<N>(g + at, 0, n, G{});
      if (m) mm[k] = read<N>(static_cast<const float*>(m + at), 0, n, 0.0f);
      pp[k] = read<N>(static_cast<const P*>(p + at), 0, n, P{});
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t at = Update::place(turn, k);
      const int n = Update::left(at, share.end);
      if (n <= 0) break;
      const auto value = widen(pp[k]), grad = fma(Lanes<N>(decay), value, widen(gg[k]) * Lanes<N>(s.grad_scale));
      auto by = grad;
      if (m) {
        const auto mi = s.first ? grad : fma(Lanes<N>(s.momentum), widen(mm[k]), Lanes<N>(s.rest) * grad);
        store(m + at, mi, n);
        by = fma(Lanes<N>(s.look_ahead), mi, Lanes<N>(s.along) * grad);
      }
      Update::store_value(p, copy, flags, at, value - Lanes<N>(s.lr) * by, n);
    }
  }
}

__global__ void __launch_bounds__(Update::threads)
    sgd_kernel(const __grid_constant__ Table table, const StepParams* params, Sgd::Args args, std::int64_t per_block) {
  if (params->skip) return;
  const Sgd::Step step = Sgd::step(args, *params);
  Update::on_share(table, per_block,
                   [&]<class P, class G>(const TensorShare& share) { update<P, G>(table, share, step); });
}

}  // namespace

void sgd(Stream& s, const Grad* tensors, const std::uint8_t* decays, std::int64_t count, const Sgd::Args& args) {
  Update::over_tensors<Sgd::kOperands>(
      tensors, decays, count, [&](const Table& table, unsigned blocks, std::int64_t per_block) {
        sgd_kernel<<<blocks, Update::threads, 0, queue(s)>>>(table, s.kernel_params(), args, per_block);
        launched("sgd");
      });
}

}  // namespace hpcdl::cuda
