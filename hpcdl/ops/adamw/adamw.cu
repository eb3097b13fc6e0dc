#include "hpcdl/ops/adamw/adamw.h"

#include "hpcdl/cuda/update.cuh"

namespace hpcdl::cuda {
namespace {

using Table = Update::Table<AdamW::kOperands>;

/// 1 - beta^t. Not in one operation with the last product: a CPU makes two.
__device__ float correction(double beta, std::int64_t t) {
  return static_cast<float>(__dsub_rn(1, AdamW::power(beta, t)));
}

/// The factors of this step, computed with the same operations as AdamW::step().
__device__ AdamW::Step step_of(const AdamW::Args& a, const StepParams& p) {
  return {a, p.lr, p.grad_scale * p.clip_factor, correction(a.beta1, p.step + 1), correction(a.beta2, p.step + 1)};
}

/// The factors of this step as the update uses them.
struct Factors {
  float scale, beta1, beta2, rest1, rest2, keep, minus_rate, root, eps;
  __device__ Factors(const AdamW::Step& s, bool decays)
      : scale(s.grad_scale),
        beta1(static_cast<float>(s.args.beta1)),
        beta2(static_cast<float>(s.args.beta2)),
        rest1(static_cast<float>(1 - s.args.beta1)),
        rest2(static_cast<float>(1 - s.args.beta2)),
        keep(decays ? fmaf(-s.lr, s.args.weight_decay, 1.0f) : 1.0f),
        minus_rate(-s.lr / s.correction1),
        root(1.0f / sqrtf(s.correction2)),
        eps(s.args.eps) {}
};

/// All operands of an iteration are loaded before the first is used; the step's factors are awaited after the first
/// loads.
template <class P, class G>
__device__ void update(const Table& table, const TensorShare& share, const AdamW::Step& step) {
  constexpr int N = Update::lanes, kPacks = Update::packs;
  P* p = static_cast<P*>(table.pointer[0][share.i]);
  const G* g = static_cast<const G*>(table.pointer[1][share.i]);
  float *m = static_cast<float*>(table.pointer[2][share.i]), *v = static_cast<float*>(table.pointer[3][share.i]);
  void* copy = table.pointer[4][share.i];
  const unsigned char flags = table.flags[share.i];
  bool ready = false;
  for (std::int64_t turn = share.begin; turn < share.end; turn += Update::per_turn) {
    Pack<P, N> pp[kPacks];
    Pack<G, N> gg[kPacks];
    Pack<float, N> mm[kPacks], vv[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t at = Update::place(turn, k);
      const int n = Update::left(at, share.end);
      gg[k] = read<N>(g + at, 0, n, G{});
      mm[k] = read<N>(static_cast<const float*>(m + at), 0, n, 0.0f);
      vv[k] = read<N>(static_cast<const float*>(v + at), 0, n, 0.0f);
      pp[k] = read<N>(static_cast<const P*>(p + at), 0, n, P{});
    }
    if (!ready) __syncthreads(), ready = true;
    const Factors f(step, flags & Update::decays);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const std::int64_t at = Update::place(turn, k);
      const int n = Update::left(at, share.end);
      if (n <= 0) break;
      const auto grad = widen(gg[k]) * Lanes<N>(f.scale);
      const auto mi = fma(Lanes<N>(f.beta1), widen(mm[k]), Lanes<N>(f.rest1) * grad);
      const auto vi = fma(Lanes<N>(f.beta2), widen(vv[k]), Lanes<N>(f.rest2) * grad * grad);
      const auto out = fma(widen(pp[k]), Lanes<N>(f.keep),
                           Lanes<N>(f.minus_rate) * mi / fma(sqrt(vi), Lanes<N>(f.root), Lanes<N>(f.eps)));
      store(m + at, mi, n);
      store(v + at, vi, n);
      Update::store_value(p, copy, flags, at, out, n);
    }
  }
}

__global__ void __launch_bounds__(Update::threads)
    adamw_kernel(const __grid_constant__ Table table, const StepParams* params, AdamW::Args args,
                 std::int64_t per_block) {
  __shared__ AdamW::Step step;
  if (params->skip) return;
  // The last warp computes the factors, which takes longer than the first loads of the other warps.
  if (threadIdx.x == Update::threads - 1) step = step_of(args, *params);
  Update::on_share(table, per_block,
                   [&]<class P, class G>(const TensorShare& share) { update<P, G>(table, share, step); });
}

}  // namespace

void adamw(Stream& s, const Grad* tensors, const std::uint8_t* decays, std::int64_t count, const AdamW::Args& args) {
  Update::over_tensors<AdamW::kOperands>(
      tensors, decays, count, [&](const Table& table, unsigned blocks, std::int64_t per_block) {
        adamw_kernel<<<blocks, Update::threads, 0, queue(s)>>>(table, s.kernel_params(), args, per_block);
        launched("adamw");
      });
}

}  // namespace hpcdl::cuda
