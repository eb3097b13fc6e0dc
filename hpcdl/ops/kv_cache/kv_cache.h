#pragma once
// Appends the keys and values of new tokens to their caches, for decoding as a program.
//
// k, v: (B, T, C), f32 or bf16, rows may be strided; caches: (B, capacity, C), f32 or bf16, owned by the caller
// (Graph::constant). Token t goes to row `position + t`, with `position` from the step parameters: the program is
// recorded once and runs at every position. Read the caches with attention(q, k_cache, v_cache, {.cached = true}).

#include <span>

#include "hpcdl/op.h"
#include "hpcdl/op_info.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

namespace cpu {
template <class Isa> void kv_cache(Isa, Pool&, Tensor k_cache, Tensor v_cache, View k, View v, std::int64_t position);
}  // namespace cpu
namespace cuda {
void kv_cache(Stream&, Tensor k_cache, Tensor v_cache, View k, View v);
}  // namespace cuda

struct AppendToCache {
  static constexpr std::string_view name = "kv_cache";
  static void check(const Spec& cache, const Spec& x);
  /// Throws if the caches are full.
  static void require_room(const View& cache, const View& x, std::int64_t position);
  static void append(Stream& s, Tensor k_cache, Tensor v_cache, View k, View v) {
    on(
        s,
        [&](auto isa, Pool& pool) {
          require_room(k_cache, k, s.params().position);
          cpu::kv_cache(isa, pool, k_cache, v_cache, k, v, s.params().position);
        },
        [&](auto& q) { cuda::kv_cache(q, k_cache, v_cache, k, v); });
  }
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void*) { append(s, t[0], t[1], t[2], t[3]); }
  /// Writes the rows of the new tokens to the caches and reads nothing from them.
  static Cost cost(const Spec& k_cache, const Spec& v_cache, const Spec& k) {
    return {.writes = static_cast<double>(k.size() * (dtype_bytes(k_cache.dtype) + dtype_bytes(v_cache.dtype))),
            .updates = -static_cast<double>(k_cache.bytes() + v_cache.bytes())};
  }
};

/// Records the update of both caches in place.
template <Symbolic V> void append_to_cache(const V& k_cache, const V& v_cache, const V& k, const V& v) {
  AppendToCache::check(k_cache.spec(), k.spec());
  AppendToCache::check(v_cache.spec(), v.spec());
  auto cached = k_cache.operand(), cached_v = v_cache.operand();
  cached.access = cached_v.access = decltype(cached.access)::update;
  const decltype(cached) operands[] = {cached, cached_v, k.operand(), v.operand()};
  k.graph().template emit<AppendToCache>(operands, nullptr, 0,
                                         AppendToCache::cost(k_cache.spec(), v_cache.spec(), k.spec()));
}

}  // namespace hpcdl
