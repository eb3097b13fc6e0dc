#include "hpcdl/ops/adamw/adamw.h"

#include "hpcdl/cuda/lanes.h"
#include "hpcdl/cuda/many_tensors.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256, kPerThread = 16;
constexpr std::int64_t kPerBlock = kThreads * kPerThread;
constexpr unsigned char kDecays = 1, kBf16Value = 2, kBf16Gradient = 4, kF16Copy = 8;

using Table = TensorTable<AdamW::kOperands, 400>;  // 20 of the 32 KB that a launch can carry

/// The factors of this step, by the very operations of AdamW::step().
__device__ AdamW::Step step_of(const AdamW::Args& a, const StepParams& p) {
  const double t = static_cast<double>(p.step + 1);
  return {a, p.lr, p.grad_scale * p.clip_factor, static_cast<float>(1 - pow(static_cast<double>(a.beta1), t)),
          static_cast<float>(1 - pow(static_cast<double>(a.beta2), t))};
}

template <class P, class G> __device__ void update(const Table& table, int i, std::int64_t begin, const AdamW::Step& s) {
  constexpr int N = 4;
  P* p = static_cast<P*>(table.pointer[0][i]);
  const G* g = static_cast<const G*>(table.pointer[1][i]);
  float *m = static_cast<float*>(table.pointer[2][i]), *v = static_cast<float*>(table.pointer[3][i]);
  void* copy = table.pointer[4][i];
  const AdamW::Args& a = s.args;
  const float keep = table.flags[i] & kDecays ? 1.0f - s.lr * a.weight_decay : 1.0f, rate = s.lr / s.correction1, root = 1.0f / sqrtf(s.correction2);
  const Lanes<N> rest1(1.0f - a.beta1), rest2(1.0f - a.beta2);
#pragma unroll
  for (int k = 0; k < kPerThread / N; ++k) {
    const std::int64_t at = begin + (std::int64_t{k} * kThreads + threadIdx.x) * N, left = table.size[i] - at;
    if (left <= 0) return;
    const int n = static_cast<int>(left < N ? left : N);
    const auto grad = load<N>(g + at, n) * Lanes<N>(s.grad_scale);
    const auto mi = fma(Lanes<N>(a.beta1), load<N>(static_cast<const float*>(m + at), n), rest1 * grad);
    const auto vi = fma(Lanes<N>(a.beta2), load<N>(static_cast<const float*>(v + at), n), rest2 * grad * grad);
    const auto out = load<N>(static_cast<const P*>(p + at), n) * Lanes<N>(keep) - Lanes<N>(rate) * mi / fma(sqrt(vi), Lanes<N>(root), Lanes<N>(a.eps));
    store(m + at, mi, n);
    store(v + at, vi, n);
    store(p + at, out, n);
    if (copy && table.flags[i] & kF16Copy) store(static_cast<f16*>(copy) + at, out, n);
    else if (copy) store(static_cast<bf16*>(copy) + at, out, n);
  }
}

__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ Table table, const StepParams* params, AdamW::Args args) {
  __shared__ AdamW::Step step;
  if (params->skip) return;
  if (threadIdx.x == 0) step = step_of(args, *params);
  __syncthreads();
  const int i = table.find(blockIdx.x);
  const std::int64_t begin = std::int64_t{blockIdx.x - table.first_block[i]} * kPerBlock;
  const bool value16 = table.flags[i] & kBf16Value, gradient16 = table.flags[i] & kBf16Gradient;
  if (value16) gradient16 ? update<bf16, bf16>(table, i, begin, step) : update<bf16, float>(table, i, begin, step);
  else gradient16 ? update<float, bf16>(table, i, begin, step) : update<float, float>(table, i, begin, step);
}

}  // namespace

void adamw(Stream& s, const Grad* tensors, const std::uint8_t* decays, std::int64_t count, const AdamW::Args& args) {
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
      blocks += blocks_for(t[0].size(), kPerBlock);
    }
    table.first_block[table.count] = blocks;
    if (blocks == 0) continue;
    adamw_kernel<<<blocks, kThreads, 0, queue(s)>>>(table, s.kernel_params(), args);
    launched("adamw");
  }
}

}  // namespace hpcdl::cuda
