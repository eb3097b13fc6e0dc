#pragma once
// The queries, keys and values of new tokens as one op for decoding: h = rms_norm(x); q = rope(h Wq^T + bq);
// rope(h Wk^T + bk) and h Wv^T + bv go to pages of a pool. Inference only.
//
// x (B, T, C); gamma (C); the matrices (H*D, C), (Hkv*D, C), (Hkv*D, C), dense or INT4, with biases or not
// (ops/matrix.h); table (P, D) and positions (B*T) as of rope.h; pools and slots (B*T) as of kv_write.h; q (B, T, H*D),
// of the type of x. A GPU has one kernel for one row of 16 bits, and for up to 128 rows and dense matrices rms_norm and
// one kernel; whatever else is computed as rms_norm, linear or int4_linear, rope and kv_write do, with the same bits. All
// that those compute is rounded to the type of x in any case, before it goes to pools of another type.

#include "hpcdl/ops/kv_write/kv_write.h"
#include "hpcdl/ops/matrix.h"
#include "hpcdl/ops/rms_norm/rms_norm.h"
#include "hpcdl/ops/rope/rope.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

struct NormQkv {
  static constexpr std::string_view name = "norm_qkv";
  struct Args {
    std::int64_t head_dim = 0;  // D
    float eps = 1e-5f;
    bool constant_weights = false;  // as in NormSwiglu
  };
  using RecordArgs = Args;
  /// Where the row of each token is in the table of the angles, and where in the pools.
  template <class T> struct Places {
    T positions, slots;
  };
  /// Operands of a record: the result, the pools, x, gamma, table, places; w, scale, offset and bias of q, k and v; then
  /// scratch: h, k, v, and for INT4 the rounded h: values, steps, sums.
  enum Operands {
    kQ,
    kKeys,
    kValues,
    kX,
    kGamma,
    kTable,
    kPositions,
    kSlots,
    kMatrices,
    kScratch = kMatrices + 12,
    kCount = kScratch + 6
  };

  /// Checks the operands; returns the spec of q.
  static Spec checked(const Spec& x, const Spec& gamma, const Spec& table, const Places<Spec>& at,
                      const Matrix<Spec> (&m)[3], const Spec& keys, const Spec& values, const Args& a);
  /// h, k, v, values, steps, sums.
  static std::array<Spec, 6> scratch(const Spec& x, const Matrix<Spec> (&m)[3]);
  static Cost cost(const Spec& x, const Matrix<Spec> (&m)[3], const Spec& keys, const Spec& values);
  static void forward(Stream& s, Tensor q, Tensor keys, Tensor values, View x, View gamma, View table,
                      const Places<View>& at, const Matrix<View> (&m)[3], const Tensor (&scratch)[6], const Args& a);
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void* args);
};

namespace cuda {
/// `keys` and `values`: pools of the type of x, or rows (B, T, Hkv*D) of it; `h`: scratch like x, for several rows. False
/// if no kernel supports the operands.
bool norm_qkv(Stream&, const Tensor& q, const Tensor& keys, const Tensor& values, const View& x, const View& gamma,
              const View& table, const NormQkv::Places<View>& at, const Matrix<View> (&m)[3], const Tensor& h,
              const NormQkv::Args& a);
}  // namespace cuda

/// Records the op, which updates both pools in place; returns q. Variables may be absent where views may.
template <Symbolic V>
V norm_qkv(const V& x, const V& gamma, const V& table, const NormQkv::Places<V>& at, const Matrix<V> (&m)[3],
           const V& keys, const V& values, const NormQkv::Args& a) {
  const auto spec = [](const V& v) { return v ? v.spec() : Spec(); };
  const auto specs = [&](const Matrix<V>& w) {
    return Matrix<Spec>{spec(w.w), spec(w.scale), spec(w.offset), spec(w.bias)};
  };
  const Matrix<Spec> all[] = {specs(m[0]), specs(m[1]), specs(m[2])};
  auto& g = x.graph();
  const V q =
      g.temporary("q", NormQkv::checked(x.spec(), gamma.spec(), table.spec(), {at.positions.spec(), at.slots.spec()},
                                        all, keys.spec(), values.spec(), a));
  std::vector operands{write_operand(q),    update_operand(keys), update_operand(values),     read_operand(x),
                       read_operand(gamma), read_operand(table),  read_operand(at.positions), read_operand(at.slots)};
  for (const auto& w : m)
    for (const V* v : {&w.w, &w.scale, &w.offset, &w.bias}) operands.push_back(v->operand());
  for (const auto& s : NormQkv::scratch(x.spec(), all)) operands.push_back(write_operand(g.temporary("scratch", s)));
  auto args = a;
  clear_padding(args);
  g.template emit<NormQkv>(operands, &args, sizeof args, NormQkv::cost(x.spec(), all, keys.spec(), values.spec()));
  return q;
}

}  // namespace hpcdl
