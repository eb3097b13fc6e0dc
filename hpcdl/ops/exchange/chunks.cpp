#include "hpcdl/ops/exchange/chunks.h"

#include "hpcdl/ops/exchange/copy_rows.h"

namespace hpcdl {
namespace {

/// f(by_position, by_rank) for every chunk of a rank: views whose rows are that chunk of each sequence.
template <class F> void each_chunk(const View& by_position, const View& by_rank, const ChunkArgs& a, F&& f) {
  const std::int64_t batch = by_position[0], chunk = by_rank[1] * by_rank[2];  // elements
  const Shape shape{batch, chunk};
  const auto at = [&](const View& x, std::int64_t first, std::int64_t stride) {
    auto* const data = const_cast<std::byte*>(x.ptr<std::byte>()) + first * dtype_bytes(x.dtype());
    return Tensor(data, {shape, x.dtype()}, Shape{stride, 1}, x.device());
  };
  for (int r = 0; r < a.ranks; ++r)
    for (int i = 0; i < 2; ++i)
      f(at(by_position, a.place(r, i) * chunk, 2 * a.ranks * chunk), at(by_rank, (2 * r + i) * batch * chunk, chunk));
}

void require_3d(std::string_view op, const Spec& x) {
  require(x.shape.rank() == 3, op, "needs three dims, got {}", to_string(x));
}

}  // namespace

Spec OrderChunks::infer(const Spec& x, const Args& a) {
  require_3d(name, x);
  const auto chunks = 2 * a.ranks;
  require(x[0] % chunks == 0, name, "expected two chunks of each of {} ranks, got {}", a.ranks, to_string(x));
  return {{x[0] / chunks, x[1] * chunks, x[2]}, x.dtype};
}
void OrderChunks::forward(Stream& s, Tensor y, View x, const Args& a) {
  each_chunk(y, x, a, [&](const Tensor& to, const Tensor& from) { copy_rows(s, to, from); });
}
void OrderChunks::backward(Stream& s, Grad dx, View dy, const Args& a) {
  each_chunk(dy, dx, a, [&](const Tensor& from, const Tensor& to) { write_rows(s, Grad(to, dx.write()), from); });
}

Spec DivideChunks::infer(const Spec& x, const Args& a) {
  require_3d(name, x);
  const auto chunks = 2 * a.ranks;
  require(x[1] % chunks == 0, name, "{} tokens of a sequence are not divisible into {} chunks", x[1], chunks);
  return {{x[0] * chunks, x[1] / chunks, x[2]}, x.dtype};
}
void DivideChunks::forward(Stream& s, Tensor y, View x, const Args& a) {
  each_chunk(x, y, a, [&](const Tensor& from, const Tensor& to) { copy_rows(s, to, from); });
}
void DivideChunks::backward(Stream& s, Grad dx, View dy, const Args& a) {
  each_chunk(dx, dy, a, [&](const Tensor& to, const Tensor& from) { write_rows(s, Grad(to, dx.write()), from); });
}

}  // namespace hpcdl
