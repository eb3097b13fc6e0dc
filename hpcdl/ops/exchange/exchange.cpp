#include "hpcdl/ops/exchange/exchange.h"

#include <algorithm>
#include <cstring>

#include "hpcdl/ops/exchange/copy_rows.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/program/check.h"
#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl {
namespace {

/// The dim along which rows are concatenated and divided.
std::int64_t& rows_of(Spec& x) { return x.shape[x.shape.rank() > 1 ? -2 : 0]; }

void require_rows(std::string_view op, const Spec& x) {
  require(x.shape.rank() >= 1, op, "needs (..., T, C), got {}", to_string(x));
}

template <class Args> std::vector<Exchange> exchange(ExchangeKind kind, const Spec& whole, const void* args) {
  const auto& axis = static_cast<const Args*>(args)->axis;
  return {{kind, axis.name, axis.ranks, whole.bytes()}};
}

Tensor writable(const View& v) { return Tensor(const_cast<void*>(v.data()), v.spec(), v.strides(), v.device()); }

/// Columns [begin, begin + count) of all rows.
View columns(const View& x, std::int64_t begin, std::int64_t count) {
  Shape shape{x.rows(), count}, strides{x.row_stride(), 1};
  return View(x.ptr<std::byte>() + begin * dtype_bytes(x.dtype()), {shape, x.dtype()}, strides, x.device());
}

/// The rows that came from rank i, without the padding that equalises the number of columns.
View part_of(const View& parts, int i, int ranks, std::int64_t count) {
  const std::int64_t rows = parts.rows() / ranks;
  const View part(parts.ptr<std::byte>() + i * rows * parts.cols() * dtype_bytes(parts.dtype()),
                  {{rows, parts.cols()}, parts.dtype()}, parts.device());
  return columns(part, 0, count);
}

}  // namespace

void copy_rows(Stream& s, const Tensor& to, const View& from) {
  const auto width = static_cast<std::size_t>(from.cols() * dtype_bytes(from.dtype()));
  const auto to_pitch = static_cast<std::size_t>(to.row_stride() * dtype_bytes(to.dtype())),
             pitch = static_cast<std::size_t>(from.row_stride() * dtype_bytes(from.dtype()));
  if (from.size() == 0) return;
#if HPCDL_CUDA
  if (s.device().is_cuda()) {
    cuda::check(cudaMemcpy2DAsync(to.data(), to_pitch, from.data(), pitch, width, static_cast<std::size_t>(from.rows()),
                                  cudaMemcpyDeviceToDevice, cuda::queue(s)),
                "copy_rows");
    return;
  }
#endif
  for_rows(s.pool(), from.rows(), from.cols(), [&](std::int64_t begin, std::int64_t end) {
    for (auto r = static_cast<std::size_t>(begin); r < static_cast<std::size_t>(end); ++r)
      std::memcpy(to.ptr<std::byte>() + r * to_pitch, from.ptr<std::byte>() + r * pitch, width);
  });
}

void write_rows(Stream& s, const Grad& to, const View& from) {
  if (!to.accumulate()) return copy_rows(s, to, from);
  if (from.size() == 0) return;
  const Grad pair[2] = {to, Grad(writable(from), Write::overwrite)};
  AddInto::run(s, pair, nullptr);
}

namespace {

void join(Stream& s, const Tensor& y, const View& parts, const ColumnShares& shares) {
  for (int i = 0; i < shares.ranks; ++i)
    copy_rows(s, writable(columns(y, shares.begin(i), shares.count(i))),
              part_of(parts, i, shares.ranks, shares.count(i)));
}

Spec joined(std::string_view op, Spec parts, std::int64_t columns, int ranks) {
  require(parts.shape.rank() >= 2 && parts[-2] % ranks == 0, op, "needs ({} T, C), got {}", ranks, to_string(parts));
  parts.shape[-2] /= ranks, parts.shape[-1] = columns;
  return parts;
}

}  // namespace

// ---------------------------------------------------------------- exchanges

void AllReduce::check_record(const RawRecord& r) {
  r.require_count(1);
  require(r.contiguous(0).dtype != DType::none, name, "its tensor is absent");
}
std::vector<Exchange> AllReduce::exchanges(std::span<const Spec> o, const void* args) {
  return exchange<Args>(ExchangeKind::all_reduce, o[0], args);
}

Spec AllGather::infer(const Spec& x, const Args& a) {
  require_rows(name, x);
  Spec y = x;
  rows_of(y) *= a.axis.ranks;
  return y;
}
std::vector<Exchange> AllGather::exchanges(std::span<const Spec> o, const void* args) {
  return exchange<Args>(ExchangeKind::all_gather, o[0], args);
}

Spec ReduceScatter::infer(const Spec& x, const Args& a) {
  require_rows(name, x);
  Spec y = x;
  require(rows_of(y) % a.axis.ranks == 0, name,
          "{} tokens of a sequence are not divisible by {} ranks: choose another length, or no sequence parallelism",
          rows_of(y), a.axis.ranks);
  rows_of(y) /= a.axis.ranks;
  return y;
}
std::vector<Exchange> ReduceScatter::exchanges(std::span<const Spec> o, const void* args) {
  return exchange<Args>(ExchangeKind::reduce_scatter, o[1], args);
}

Spec AllToAll::infer(const Spec& x, const Args& a) {
  require(x.shape.rank() >= 1 && x[0] % a.axis.ranks == 0, name, "expected {} equal parts, got {}", a.axis.ranks,
          to_string(x));
  return x;
}
std::vector<Exchange> AllToAll::exchanges(std::span<const Spec> o, const void* args) {
  return exchange<Args>(ExchangeKind::all_to_all, o[0], args);
}

void PassOn::check_record(const RawRecord& r) {
  r.require_count(2);
  require_spec(name, "its source", r.spec(1), r.spec(0));
}
void PassOn::run(Stream& s, const Grad* t, const void*) {
  if (!t[0].accumulate()) return copy(s, t[0], t[1]);
  AddInto::run(s, t, nullptr);
}

// ---------------------------------------------------------------- columns

std::int64_t ColumnShares::widest() const {
  std::int64_t most = 0;
  for (int r = 0; r < ranks; ++r) most = std::max(most, count(r));
  return most;
}

Spec JoinColumns::infer(const Spec& parts, const Args& a) {
  const Spec y = joined(name, parts, a.columns, a.ranks);
  require(parts[-1] == shares(a).widest(), name, "{} columns of {} ranks are gathered as {} of each, got {}", a.columns,
          a.ranks, shares(a).widest(), to_string(parts));
  return y;
}
void JoinColumns::forward(Stream& s, Tensor y, View parts, const Args& a) { join(s, y, parts, shares(a)); }
void JoinColumns::backward(Stream& s, Grad dparts, View dy, const Args& a) {
  require(a.columns % a.ranks == 0 && !dparts.accumulate(), name, "has a gradient of equal shares alone");
  const auto width = dparts.cols();
  for (int i = 0; i < a.ranks; ++i)
    copy_rows(s, writable(part_of(dparts, i, a.ranks, width)), columns(dy, i * width, width));
}

Spec DivideColumns::infer(const Spec& x, const Args& a) {
  require(x.shape.rank() == 3 && x[-1] % a.ranks == 0, name, "needs (R, T, C) with C divisible by {}, got {}", a.ranks,
          to_string(x));
  Spec y = x;
  y.shape[0] *= a.ranks, y.shape[-1] /= a.ranks;
  return y;
}
void DivideColumns::forward(Stream& s, Tensor y, View x, const Args& a) {
  const auto width = y.cols();
  for (int i = 0; i < a.ranks; ++i) copy_rows(s, writable(part_of(y, i, a.ranks, width)), columns(x, i * width, width));
}
void DivideColumns::backward(Stream& s, Grad dx, View dy, const Args& a) {
  const auto width = dy.cols();
  for (int i = 0; i < a.ranks; ++i)
    write_rows(s, Grad(writable(columns(dx, i * width, width)), dx.write()), part_of(dy, i, a.ranks, width));
}

Spec JoinMyColumns::infer(const Spec& parts, const Spec& mine, const Args& a) {
  require_spec(name, "this rank's columns", mine, joined(name, parts, parts[-1], a.ranks));
  return joined(name, parts, parts[-1] * a.ranks, a.ranks);
}
void JoinMyColumns::forward(Stream& s, Tensor y, View parts, View, const Args& a) {
  join(s, y, parts, {y.cols(), 1, a.ranks});
}
void JoinMyColumns::backward(Stream& s, Grad dmine, View dy, const Args& a) {
  write_rows(s, dmine, columns(dy, a.rank * dmine.cols(), dmine.cols()));
}

Spec PadColumns::infer(const Spec& x, const Args& a) {
  require(x.shape.rank() >= 1 && x[-1] <= a.width && a.width < std::int64_t{1} << 40, name,
          "needs (..., C) of at most {} columns, got {}", a.width, to_string(x));
  Spec y = x;
  y.shape[-1] = a.width;
  return y;
}
void PadColumns::forward(Stream& s, Tensor y, View x, const Args&) {
  copy_rows(s, writable(columns(y, 0, x.cols())), x);
}

}  // namespace hpcdl
