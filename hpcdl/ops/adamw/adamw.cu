#include "hpcdl/ops/adamw/adamw.h"

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/cuda/many_tensors.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256, kPacks = 2;  // packs of 4 elements that a thread has under way
constexpr std::int64_t kPerTurn = kThreads * kPacks * 4, kSmall = 1 << 23;  // elements; fewer than kSmall are spread over more blocks
constexpr unsigned char kDecays = 1, kBf16Value = 2, kBf16Gradient = 4, kF16Copy = 8;

using Table = TensorTable<AdamW::kOperands, 400>;  // 20 of the 32 KB that a launch can carry

/// The factors of this step, by the very operations of AdamW::step().
__device__ AdamW::Step step_of(const AdamW::Args& a, const StepParams& p) {
  const double t = static_cast<double>(p.step + 1);
  return {a, p.lr, p.grad_scale * p.clip_factor, static_cast<float>(1 - pow(static_cast<double>(a.beta1), t)),
          static_cast<float>(1 - pow(static_cast<double>(a.beta2), t))};
}

/// The factors of this step as the update uses them.
struct Factors {
  float scale, beta1, beta2, rest1, rest2, keep, rate, root, eps;
  __device__ Factors(const AdamW::Step& s, bool decays)
      : scale(s.grad_scale), beta1(s.args.beta1), beta2(s.args.beta2), rest1(1.0f - beta1), rest2(1.0f - beta2),
        keep(decays ? 1.0f - s.lr * s.args.weight_decay : 1.0f), rate(s.lr / s.correction1), root(1.0f / sqrtf(s.correction2)), eps(s.args.eps) {}
};

/// Elements [begin, end) of tensor i. All operands of a turn are under way before the first is used; the step's factors
/// are waited for behind the first loads.
template <class P, class G> __device__ void update(const Table& table, int i, std::int64_t begin, std::int64_t end, const AdamW::Step& step) {
  constexpr int N = 4;
  P* p = static_cast<P*>(table.pointer[0][i]);
  const G* g = static_cast<const G*>(table.pointer[1][i]);
  float *m = static_cast<float*>(table.pointer[2][i]), *v = static_cast<float*>(table.pointer[3][i]);
  void* copy = table.pointer[4][i];
  bool ready = false;
  for (std::int64_t turn = begin; turn < end; turn += kPerTurn) {
    Pack<P, N> pp[kPacks];
    Pack<G, N> gg[kPacks];
    Pack<float, N> mm[kPacks], vv[kPacks];
    const auto place = [&](int k) { return turn + (k * kThreads + static_cast<int>(threadIdx.x)) * N; };
    const auto count = [&](int k) { return static_cast<int>(end - place(k) < N ? end - place(k) : N); };
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      gg[k] = read<N>(g + place(k), 0, count(k), G{});
      mm[k] = read<N>(static_cast<const float*>(m + place(k)), 0, count(k), 0.0f);
      vv[k] = read<N>(static_cast<const float*>(v + place(k)), 0, count(k), 0.0f);
      pp[k] = read<N>(static_cast<const P*>(p + place(k)), 0, count(k), P{});
    }
    if (!ready) __syncthreads(), ready = true;
    const Factors f(step, table.flags[i] & kDecays);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int n = count(k);
      if (n <= 0) break;
      const auto grad = widen(gg[k]) * Lanes<N>(f.scale);
      const auto mi = fma(Lanes<N>(f.beta1), widen(mm[k]), Lanes<N>(f.rest1) * grad);
      const auto vi = fma(Lanes<N>(f.beta2), widen(vv[k]), Lanes<N>(f.rest2) * grad * grad);
      const auto out = widen(pp[k]) * Lanes<N>(f.keep) - Lanes<N>(f.rate) * mi / fma(sqrt(vi), Lanes<N>(f.root), Lanes<N>(f.eps));
      store(m + place(k), mi, n);
      store(v + place(k), vi, n);
      store(p + place(k), out, n);
      if (copy && table.flags[i] & kF16Copy) store(static_cast<f16*>(copy) + place(k), out, n);
      else if (copy) store(static_cast<bf16*>(copy) + place(k), out, n);
    }
  }
}

__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ Table table, const StepParams* params, AdamW::Args args, std::int64_t per_block) {
  __shared__ AdamW::Step step;
  if (params->skip) return;
  // The last warp works out the factors, which takes longer than the first loads of the others.
  if (threadIdx.x == kThreads - 1) step = step_of(args, *params);
  const int i = table.find(blockIdx.x);
  const std::int64_t begin = std::int64_t{blockIdx.x - table.first_block[i]} * per_block, end = begin + per_block < table.size[i] ? begin + per_block : table.size[i];
  const bool value16 = table.flags[i] & kBf16Value, gradient16 = table.flags[i] & kBf16Gradient;
  if (value16) gradient16 ? update<bf16, bf16>(table, i, begin, end, step) : update<bf16, float>(table, i, begin, end, step);
  else gradient16 ? update<float, bf16>(table, i, begin, end, step) : update<float, float>(table, i, begin, end, step);
}

}  // namespace

void adamw(Stream& s, const Grad* tensors, const std::uint8_t* decays, std::int64_t count, const AdamW::Args& args) {
  std::int64_t elements = 0;
  for (std::int64_t i = 0; i < count; ++i) elements += tensors[i * AdamW::kOperands].size();
  const std::int64_t per_block = elements < kSmall ? kPerTurn : 4 * kPerTurn;
  for (std::int64_t first = 0; first < count; first += Table::max) {
    Table table;
    unsigned blocks = 0;
    for (std::int64_t i = first; i < count && table.count < Table::max; ++i) {
      const Grad* t = tensors + i * AdamW::kOperands;
      const int k = table.count++;
      table.size[k] = t[0].size();
      for (int p = 0; p < AdamW::kOperands; ++p) table.pointer[p][k] = t[p].data();
      table.flags[k] = static_cast<unsigned char>((decays[i] ? kDecays : 0) | (t[0].dtype() == DType::bf16 ? kBf16Value : 0) |
                                                  (t[1].dtype() == DType::bf16 ? kBf16Gradient : 0) | (t[4].dtype() == DType::f16 ? kF16Copy : 0));
      table.first_block[k] = blocks;
      blocks += blocks_for(t[0].size(), per_block);
    }
    table.first_block[table.count] = blocks;
    if (blocks == 0) continue;
    adamw_kernel<<<blocks, kThreads, 0, queue(s)>>>(table, s.kernel_params(), args, per_block);
    launched("adamw");
  }
}

}  // namespace hpcdl::cuda
