#include "hpcdl/ops/norm_qkv/norm_qkv.h"

#include "hpcdl/program/check.h"

namespace hpcdl {

Spec NormQkv::checked(const Spec& x, const Spec& gamma, const Spec& table, const Places<Spec>& at,
                      const Matrix<Spec> (&m)[3], const Spec& keys, const Spec& values, const Args& a) {
  const Spec h = RmsNorm::infer(x, gamma, {a.eps})[0], q = matrix_spec(name, h, m[0]), k = matrix_spec(name, h, m[1]),
             v = matrix_spec(name, h, m[2]);
  for (const Spec& rotated : {q, k}) Rope::infer(rotated, table, at.positions, {a.head_dim});
  KvWrite::check(keys, k, at.slots), KvWrite::check(values, v, at.slots);
  require(head_dim_of(keys) == a.head_dim, name, "heads of {} do not fit a pool of {}", a.head_dim, to_string(keys));
  return q;
}

std::array<Spec, 6> NormQkv::scratch(const Spec& x, const Matrix<Spec> (&m)[3]) {
  const Spec h = x, k = matrix_spec(name, h, m[1]), v = matrix_spec(name, h, m[2]);
  std::array<Spec, 3> most{Spec{{0}, DType::i8}, Spec{{0}, DType::f32}, Spec{{0}, DType::i32}};
  for (const auto& w : m) {
    if (!w.quantized()) continue;
    const auto here = Int4Linear::scratch(x, w.w, w.scale, w.offset, w.bias, {}, {});
    for (std::size_t i = 0; i < most.size(); ++i)
      if (here[i].bytes() > most[i].bytes()) most[i] = here[i];
  }
  return {h, k, v, most[0], most[1], most[2]};
}

Cost NormQkv::cost(const Spec& x, const Matrix<Spec> (&m)[3], const Spec& keys, const Spec& values) {
  Cost c = matrix_cost(x, m[0]);
  c += matrix_cost(x, m[1]), c += matrix_cost(x, m[2]);
  c += KvWrite::cost(keys, values, matrix_spec(name, x, m[1]));
  return c;
}

void NormQkv::forward(Stream& s, Tensor q, Tensor keys, Tensor values, View x, View gamma, View table,
                      const Places<View>& at, const Matrix<View> (&m)[3], const Tensor (&scratch)[6], const Args& a) {
  const Tensor &h = scratch[0], &k = scratch[1], &v = scratch[2];
#if HPCDL_CUDA
  const bool direct = keys.dtype() == x.dtype() && values.dtype() == x.dtype();
  if (s.device().is_cuda() &&
      cuda::norm_qkv(s, q, direct ? keys : k, direct ? values : v, x, gamma, table, at, m, h, a)) {
    if (!direct) KvWrite::write(s, keys, values, k, v, at.slots);
    return;
  }
#endif
  const int4::Scratch rounded{scratch[3], scratch[4], scratch[5]};
  RmsNorm::forward(s, h, {}, x, gamma, {a.eps});
  multiply(s, q, h, m[0], rounded, a.constant_weights);
  multiply(s, k, h, m[1], rounded, a.constant_weights);
  multiply(s, v, h, m[2], rounded, a.constant_weights);
  Rope::forward(s, q, q, table, at.positions, {a.head_dim});
  Rope::forward(s, k, k, table, at.positions, {a.head_dim});
  KvWrite::write(s, keys, values, k, v, at.slots);
}

void NormQkv::check_record(const RawRecord& r) {
  r.require_count(kCount);
  for (std::size_t i = 0; i < kCount; ++i) r.contiguous(i);
  const auto matrix = [&](std::size_t at) {
    return Matrix<Spec>{r.spec(at), r.spec(at + 1), r.spec(at + 2), r.spec(at + 3)};
  };
  const Matrix<Spec> m[] = {matrix(kMatrices), matrix(kMatrices + 4), matrix(kMatrices + 8)};
  const Spec x = r.spec(kX);
  require_spec(name, "q", r.spec(kQ),
               checked(x, r.spec(kGamma), r.spec(kTable), {r.spec(kPositions), r.spec(kSlots)}, m, r.spec(kKeys),
                       r.spec(kValues), r.args<Args>()));
  const auto wanted = scratch(x, m);
  for (std::size_t i = 0; i < wanted.size(); ++i) require_spec(name, "scratch", r.spec(kScratch + i), wanted[i]);
}

void NormQkv::run(Stream& s, const Grad* t, const void* args) {
  const auto matrix = [&](int at) { return Matrix<View>{t[at], t[at + 1], t[at + 2], t[at + 3]}; };
  const Matrix<View> m[] = {matrix(kMatrices), matrix(kMatrices + 4), matrix(kMatrices + 8)};
  const Tensor scratch[] = {t[kScratch],     t[kScratch + 1], t[kScratch + 2],
                            t[kScratch + 3], t[kScratch + 4], t[kScratch + 5]};
  forward(s, t[kQ], t[kKeys], t[kValues], t[kX], t[kGamma], t[kTable], {t[kPositions], t[kSlots]}, m, scratch,
          *static_cast<const Args*>(args));
}

}  // namespace hpcdl
