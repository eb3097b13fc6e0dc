#include <fmt/format.h>

#include "hpcdl/core/ways.h"
#include "hpcdl/ops/attention/device_attention.h"

namespace hpcdl::cuda {
namespace {

bool aligned(const View& v) {
  bool all = reinterpret_cast<std::uintptr_t>(v.data()) % 16 == 0;
  for (int d = 0; d + 1 < v.rank(); ++d) all = all && v.strides()[d] * dtype_bytes(v.dtype()) % 16 == 0;
  return all;
}

}  // namespace

AttentionShape shape_of(const Stream&, const Attend& c) {
  return {c.q[0],       c.q[1],      c.k[1],        c.args.heads,
          c.kv_heads(), c.width(),   c.args.causal, aligned(c.q) && aligned(c.k) && aligned(c.v) && aligned(c.out),
          c.q.dtype(),  c.args.scale};
}
AttentionShape shape_of(const Stream& stream, const AttendBackward& c) {
  auto s = shape_of(stream, static_cast<const Attend&>(c));
  for (const View& v : {c.dout, View(c.dq), View(c.dk), View(c.dv)}) s.aligned = s.aligned && (!v || aligned(v));
  s.backward = true, s.atomic = stream.numerics().atomic_sums;
  return s;
}

std::array<std::int64_t, 10> fields_of(const AttentionShape& s) {
  return {bucket(s.batch), bucket(s.queries), bucket(s.keys),
          s.heads,         s.kv_heads,        s.width,
          s.causal,        s.aligned,         static_cast<std::int64_t>(s.dtype),
          s.atomic};
}

std::string words_of(const AttentionShape& s) {
  return fmt::format("{}x{}x{}x{}{}{}", s.batch, s.heads, s.queries, s.width,
                     s.keys == s.queries ? "" : fmt::format(" keys {}", s.keys), s.causal ? " causal" : "");
}

}  // namespace hpcdl::cuda
