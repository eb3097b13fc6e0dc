#pragma once
// Stores the keys and values of new tokens in pages of a pool.
//
// k, v: (B, T, Hkv*D), f32, bf16 or f16; rows may be strided. Pools: (pages, Hkv, 64, D) of any of these types, or of
// 8-bit codes with a scale for each row of a head (pages.h), memory of the caller (Graph::constant). slots: i64 (B*T),
// where each row goes: slot s is token s % 64 of page s / 64; -1 writes nothing. Read the pools with paged_attention().

#include "hpcdl/op.h"
#include "hpcdl/op_info.h"
#include "hpcdl/ops/kv_write/pages.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

namespace cpu {
template <class Isa> void kv_write(Isa, Pool&, Tensor k_pool, Tensor v_pool, View k, View v, View slots);
}  // namespace cpu
namespace cuda {
/// A slot outside the pool writes nothing.
void kv_write(Stream&, Tensor k_pool, Tensor v_pool, View k, View v, View slots);
}  // namespace cuda

struct KvWrite {
  static constexpr std::string_view name = "kv_write";
  static void check(const Spec& pool, const Spec& x, const Spec& slots);
  /// Throws if a slot is not in the pool.
  static void require_slots(const View& slots, const View& pool);
  static void write(Stream& s, Tensor k_pool, Tensor v_pool, View k, View v, View slots) {
    on(
        s,
        [&](auto isa, Pool& pool) {
          require_slots(slots, k_pool);
          cpu::kv_write(isa, pool, k_pool, v_pool, k, v, slots);
        },
        [&](auto& q) { cuda::kv_write(q, k_pool, v_pool, k, v, slots); });
  }
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void*) { write(s, t[0], t[1], t[2], t[3], t[4]); }
  /// Writes the rows of the new tokens to the pools and reads nothing from them.
  static Cost cost(const Spec& k_pool, const Spec& v_pool, const Spec& k) {
    const auto bytes = [&](const Spec& pool) {
      return k.size() / head_dim_of(pool) * pool[3] * dtype_bytes(pool.dtype);  // scales included
    };
    return {.writes = static_cast<double>(bytes(k_pool) + bytes(v_pool)),
            .updates = -static_cast<double>(k_pool.bytes() + v_pool.bytes())};
  }
};

/// Records the update of both pools in place.
template <Symbolic V> void kv_write(const V& k_pool, const V& v_pool, const V& k, const V& v, const V& slots) {
  KvWrite::check(k_pool.spec(), k.spec(), slots.spec());
  KvWrite::check(v_pool.spec(), v.spec(), slots.spec());
  auto keys = k_pool.operand(), values = v_pool.operand();
  keys.access = values.access = decltype(keys.access)::update;
  const decltype(keys) operands[] = {keys, values, k.operand(), v.operand(), slots.operand()};
  k.graph().template emit<KvWrite>(operands, nullptr, 0, KvWrite::cost(k_pool.spec(), v_pool.spec(), k.spec()));
}

}  // namespace hpcdl
