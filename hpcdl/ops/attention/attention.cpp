#include "hpcdl/ops/attention/attention.h"

#include <algorithm>

#include "hpcdl/op_info.h"
#include "hpcdl/ops/attention/decode_shape.h"

namespace hpcdl {
namespace {

int kv_heads(const Attention::Args& a) { return a.kv_heads > 0 ? a.kv_heads : a.heads; }

/// D of a (B, T, heads * D) or (B, T, heads, D) tensor.
std::int64_t head_dim(const Spec& x, int heads, std::string_view operand) {
  const int rank = x.shape.rank();
  require(rank == 3 || rank == 4, Attention::name, "{} must be (B, T, heads*D) or (B, T, heads, D), got {}", operand,
          to_string(x));
  if (rank == 3) {
    require(x[2] % heads == 0, Attention::name, "{} must hold {} heads in its last dim, got {}", operand, heads,
            to_string(x));
    return x[2] / heads;
  }
  require(x[2] == heads, Attention::name, "{} must hold {} heads, got {}", operand, heads, to_string(x));
  return x[3];
}

std::int64_t ahead(const Attention::Args& a) { return std::max<std::int64_t>(a.ahead, 0); }

/// Query-key pairs of one head that the mask allows.
double pairs(const Spec& q, const Spec& k, const Attention::Args& a) {
  const auto t = static_cast<double>(q[1]), s = static_cast<double>(k[1]);
  if (!a.causal) return t * s;
  const auto triangle = [](double n) { return n > 0 ? n * (n + 1) / 2 : 0; };
  // Queries at positions end - t .. end - 1, each with the keys up to its own, of which there are s, less those before
  // its window.
  const auto w = static_cast<double>(a.window), end = s + static_cast<double>(ahead(a));
  const auto until = [&](double before) { return triangle(end - before) - triangle(end - t - before); };
  return until(0) - until(s) - (a.window > 0 ? until(w) - until(w + s) : 0);
}

}  // namespace

bool Attention::Args::valid() const { return valid_args(causal); }

std::array<Spec, 2> Attention::infer(const Spec& q, const Spec& k, const Spec& v, const Args& a) {
  require_float(name, q, "q");
  require(a.heads > 0 && a.kv_heads >= 0 && a.heads % kv_heads(a) == 0, name,
          "kv_heads must divide heads, got {} and {}", a.heads, kv_heads(a));
  const auto d = head_dim(q, a.heads, "q");
  require(d >= 1 && d <= kMaxHeadDim, name, "head dim must be 1 .. {}, got {}", kMaxHeadDim, d);
  require(head_dim(k, kv_heads(a), "k") == d && k[0] == q[0] && k.dtype == q.dtype, name, "k does not fit q: {} and {}",
          to_string(k), to_string(q));
  require_spec(name, "v", v, k);
  require(a.window >= 0 && (a.window == 0 || a.causal), name,
          "a window needs a causal mask and at least one key, got {}{}", a.window, a.causal ? "" : " without a mask");
  require(a.cap >= 0, name, "the cap of scores must be positive, or 0 for none, got {}", a.cap);
  constexpr std::int64_t kFarthest = std::int64_t{1} << 48;
  require(a.ahead >= -1 && (a.ahead <= 0 || (a.ahead < a.window && a.ahead < kFarthest)), name,
          "queries that are {} positions after the keys need a window of more of them, got {}", a.ahead, a.window);
  require(k[1] >= 1 && (k[1] + ahead(a) >= q[1] || !a.causal), name, "{} queries need at least as many keys, got {}",
          q[1], k[1]);
  return {q, Spec{{q[0], a.heads, q[1]}, DType::f32}};
}

Cost Attention::cost(const Spec& q, const Spec& k, const Spec&, const Args& a) {
  const auto d = static_cast<double>(head_dim(q, a.heads, "q"));
  return {.operations = 4 * d * static_cast<double>(q[0] * a.heads) * pairs(q, k, a)};
}

Cost Attention::backward_cost(const Spec& q, const Spec& k, const Spec& v, const Args& a) {
  return {.operations = 2.5 * cost(q, k, v, a).operations};
}

std::int64_t Attention::splits(const Spec& q, const Spec& k, const Args& a) {
  // As many shares as fill a large GPU; f32 has no kernel on tensor cores. A share has at least kLeast keys. For short
  // caches there are at most as many shares as blocks in a cluster, which combines them without a second kernel. For
  // longer ones that kernel takes longer than more shares save: 8192 keys of 8 heads of 128, bf16, in 33 shares 16.2 us,
  // in 49 18.0 (H200).
  constexpr std::int64_t kMultiprocessors = 132, kLeast = 128, kLeastWide = 256, kCluster = 8, kShort = 4096;
  const auto d = static_cast<int>(head_dim(q, a.heads, "q")), group = a.heads / kv_heads(a),
             bytes = k.dtype == DType::f32 ? 2 : static_cast<int>(dtype_bytes(k.dtype));
  const std::int64_t blocks = decode_blocks(d, bytes, group) * kMultiprocessors;
  const std::int64_t passes = std::max<std::int64_t>(1, q[0] * kv_heads(a)),
                     keys = a.window > 0 ? std::min(k[1], a.window) : k[1],
                     least = keys > kShort && d > 64 && bytes == 2 ? kLeastWide : kLeast,
                     most = keys <= kShort ? kCluster : kMaxSplits;
  const auto once = std::clamp<std::int64_t>(std::min(blocks / passes, keys / least), 1, most);
  // If that leaves much of the GPU idle, smaller shares in several rounds: the fewest that use kEnough of it, or most of
  // it. 20 texts of 32768 keys: 619 us instead of 1008.
  constexpr std::int64_t kLeastOfRounds = 1024;
  constexpr double kEnough = 0.9;
  const auto used = [&](std::int64_t shares) {
    const std::int64_t all = passes * shares, rounds = (all + blocks - 1) / blocks;
    return static_cast<double>(all) / static_cast<double>(rounds * blocks);
  };
  std::int64_t best = once;
  for (std::int64_t n = once + 1; n <= std::min({kCluster, most, keys / kLeastOfRounds}) && used(best) < kEnough; ++n)
    if (used(n) > used(best)) best = n;
  return best;
}

std::array<Spec, 1> Attention::scratch(const Spec& q, const Spec& k, const Spec&, const Args& a) {
  const auto n = q[1] == 1 ? splits(q, k, a) : 1;
  if (n == 1) return {Spec{{0}, DType::f32}};
  return {Spec{{q[0], a.heads, n, head_dim(q, a.heads, "q") + 2}, DType::f32}};
}

std::array<Spec, 1> Attention::backward_scratch(const Spec& q, const Spec& k, const Spec&, const Args& a) {
  if (k.dtype == DType::f32) return {Spec{{0}, DType::f32}};
  // On a GPU: rows in whole tiles of up to 128, each with its sums for heads of 64 or 128, or wider ones in whole pieces
  // of 16 bytes, and four statistics; for 64 rows four words per tile.
  const auto d = head_dim(k, kv_heads(a), "k"), sums = d <= 128 ? (d + 63) / 64 * 64 : (d + 7) / 8 * 8;
  const auto rows = q[0] * a.heads * ((q[1] + 127) / 128 * 128), one = std::max<std::int64_t>(1, k.size());
  return {Spec{{std::max<std::int64_t>(2, (rows * (sums + 4) + rows / 16 + one) / one), k[0], kv_heads(a), k[1], d},
               DType::f32}};
}

}  // namespace hpcdl
