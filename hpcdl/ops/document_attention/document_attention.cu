#include "hpcdl/ops/document_attention/document_attention.h"

#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/attention/device_attention.h"

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 20;  // of a row, each with a bit of shared memory

/// A block finds the bounds of the documents of a row: first which tokens begin one, as words of 32 bits in shared memory.
/// Then each warp goes through a part of the words, forwards for the last token before that begins one, and backwards for
/// the next.
__global__ void __launch_bounds__(kThreads) document_bounds(const std::int32_t* positions, std::int64_t distance,
                                                            int tokens, std::int32_t* begins, std::int32_t* ends) {
  extern __shared__ unsigned firsts[];
  const std::int64_t row = blockIdx.x;
  positions += row * distance, begins += row * tokens, ends += row * tokens;
  const int words = (tokens + kWarp - 1) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int w = warp; w < words; w += kWarps) {
    const int t = w * kWarp + lane;
    const unsigned bits = __ballot_sync(~0u, t < tokens && (t == 0 || positions[t] == 0));
    if (lane == 0) firsts[w] = bits;
  }
  __syncthreads();
  const int each = (words + kWarps - 1) / kWarps, begin = ::min(warp * each, words), end = ::min(begin + each, words);
  // The nearest word from `w` on, in steps of +-1, that has a bit; -1 or less, or `words` or more: there is none.
  const auto find = [&](int w, int step) {
    for (; w >= 0 && w < words; w += kWarp * step) {
      const int at = w + lane * step;
      if (const unsigned any = __ballot_sync(~0u, at >= 0 && at < words && firsts[at] != 0))
        return w + (__ffs(any) - 1) * step;
    }
    return w;
  };
  const int before = find(begin - 1, -1), after = find(end, 1);
  int first = before < 0 ? 0 : before * kWarp + 31 - __clz(firsts[before]);
  for (int w = begin; w < end; ++w) {
    const unsigned bits = firsts[w], own = bits & (~0u >> (31 - lane));
    if (const int t = w * kWarp + lane; t < tokens) begins[t] = own ? w * kWarp + 31 - __clz(own) : first;
    if (bits) first = w * kWarp + 31 - __clz(bits);
  }
  int next = after >= words ? tokens : after * kWarp + __ffs(firsts[after]) - 1;
  for (int w = end - 1; w >= begin; --w) {
    const unsigned bits = firsts[w], later = bits & ~(~0u >> (31 - lane));
    if (const int t = w * kWarp + lane; t < tokens) ends[t] = later ? w * kWarp + __ffs(later) - 1 : next;
    if (bits) next = w * kWarp + __ffs(bits) - 1;
  }
}

DocumentBounds find_bounds(Stream& s, const View& positions, const Tensor& scratch) {
  const std::int64_t rows = positions[0], tokens = positions[1];
  if (tokens == 1) return {};
  auto* const to = scratch.ptr<std::int32_t>();
  const auto bounds = [&](std::int64_t i) { return View(to + i * rows * tokens, positions.spec(), s.device()); };
  require(tokens <= kMostTokens, DocumentAttention::name, "a GPU takes rows of up to {} tokens, got {}", kMostTokens,
          tokens);
  const auto bytes = static_cast<int>((tokens + kWarp - 1) / kWarp * 4);
  check(cudaFuncSetAttribute(document_bounds, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "document_attention");
  document_bounds<<<blocks_for(rows, 1), kThreads, static_cast<std::size_t>(bytes), queue(s)>>>(
      positions.ptr<std::int32_t>(), positions.row_stride(), static_cast<int>(tokens), to, to + rows * tokens);
  launched("document_attention");
  return {bounds(0), bounds(1)};
}

}  // namespace

void document_attention(Stream& s, Tensor out, Tensor lse, View q, View k, View v, View positions, Tensor bounds,
                        const DocumentAttention::Args& a) {
  if (q.size() == 0) return;
  attend_documents(s, Attend{out, lse, q, k, v, {}, a.of_document(), find_bounds(s, positions, bounds)});
}

void document_attention_backward(Stream& s, Grad dq, Grad dk, Grad dv, View q, View k, View v, View positions, View out,
                                 View lse, View dout, Tensor bounds, Tensor scratch, const DocumentAttention::Args& a) {
  if (q.size() == 0) return;
  const Attend of{out, lse, q, k, v, scratch, a.of_document(), find_bounds(s, positions, bounds)};
  attend_documents(s, AttendBackward{of, dq, dk, dv, dout});
}

}  // namespace hpcdl::cuda
