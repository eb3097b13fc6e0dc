#include "hpcdl/parallel/collectives.h"

#include <cstring>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/ops/rows.h"
#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl::parallel {
namespace {

void require_rows(std::string_view op, const Spec& x) {
  require(x.shape.rank() >= 2, op, "needs (..., T, C), got {}", to_string(x));
}

/// Columns [begin, begin + count) of all rows.
View columns(const View& x, std::int64_t begin, std::int64_t count) {
  Shape shape{x.rows(), count}, strides{x.row_stride(), 1};
  return View(x.ptr<std::byte>() + begin * dtype_bytes(x.dtype()), {shape, x.dtype()}, strides, x.device());
}
View nth(const Tensor& parts, int i) {
  const Spec part{{parts[1], parts[2]}, parts.dtype()};
  return View(parts.ptr<std::byte>() + i * part.bytes(), part, parts.device());
}
Tensor writable(const View& v) { return Tensor(const_cast<void*>(v.data()), v.spec(), v.strides(), v.device()); }

}  // namespace

Peers Peers::of(std::string_view what) const {
  Peers p = *this;
  p.tensor[what.copy(p.tensor, sizeof p.tensor - 1)] = '\0';
  return p;
}
bool Peers::valid() const {
  return ranks >= 1 && ranks <= 1 << 20 && name[sizeof name - 1] == 0 && tensor[sizeof tensor - 1] == 0 &&
         std::string_view(name).ends_with(fmt::format(" of {}", ranks)) && valid_args(algorithm);
}
void Peers::all_reduce(Stream& s, const Tensor& t, comm::Reduce op) const {
  const comm::Label label(tensor);
  group().all_reduce(s, t, op, algorithm).wait();
}
void Peers::reduce_scatter(Stream& s, const Tensor& mine, const View& all) const {
  const comm::Label label(tensor);
  group().reduce_scatter(s, mine, all, comm::Reduce::sum, algorithm).wait();
}
void Peers::all_gather(Stream& s, const Tensor& all, const View& mine) const {
  const comm::Label label(tensor);
  group().all_gather(s, all, mine, algorithm).wait();
}

void copy_rows(Stream& s, const Tensor& to, const View& from) {
  const auto width = static_cast<std::size_t>(from.cols() * dtype_bytes(from.dtype()));
  const auto to_pitch = static_cast<std::size_t>(to.row_stride() * dtype_bytes(to.dtype())),
             pitch = static_cast<std::size_t>(from.row_stride() * dtype_bytes(from.dtype()));
  if (from.size() == 0) return;
#if HPCDL_CUDA
  if (s.device().is_cuda()) {
    cuda::check(cudaMemcpy2DAsync(to.data(), to_pitch, from.data(), pitch, width, static_cast<std::size_t>(from.rows()),
                                  cudaMemcpyDeviceToDevice, cuda::queue(s)),
                "gather_columns");
    return;
  }
#endif
  for_rows(s.pool(), from.rows(), from.cols(), [&](std::int64_t begin, std::int64_t end) {
    for (auto r = static_cast<std::size_t>(begin); r < static_cast<std::size_t>(end); ++r)
      std::memcpy(to.ptr<std::byte>() + r * to_pitch, from.ptr<std::byte>() + r * pitch, width);
  });
}

void put(Stream& s, const Grad& to, const View& from) {
  if (!to.accumulate()) return copy(s, to, from);
  const Grad pair[2] = {to, Grad(writable(from), Write::overwrite)};
  AddInto::run(s, pair, nullptr);
}

void Enter::forward(Stream& s, Tensor y, View x, const Args&) { copy(s, y, x); }
void Enter::backward(Stream& s, Grad dx, View dy, Tensor sum, const Args& a) {
  const Tensor all = dx.accumulate() ? sum : static_cast<const Tensor&>(dx);
  copy(s, all, dy);
  a.all_reduce(s, all);
  if (dx.accumulate()) put(s, dx, sum);
}

void Leave::forward(Stream& s, Tensor y, View x, const Args& a) {
  copy(s, y, x);
  a.all_reduce(s, y);
}
void Leave::backward(Stream& s, Grad dx, View dy, const Args&) {
  if (dx) put(s, dx, dy);  // absent where the gradient of y was taken over as it is
}

Spec GatherRows::infer(const Spec& x, const Args& a) {
  require_rows(name, x);
  Spec y = x;
  y.shape[-2] *= a.size();
  return y;
}
void GatherRows::forward(Stream& s, Tensor y, View x, const Args& a) { a.all_gather(s, y, x); }
void GatherRows::backward(Stream& s, Grad dx, View dy, Tensor part, const Args& a) {
  const Tensor mine = dx.accumulate() ? part : static_cast<const Tensor&>(dx);
  a.reduce_scatter(s, mine, dy);
  if (dx.accumulate()) put(s, dx, part);
}

Spec ScatterRows::infer(const Spec& x, const Args& a) {
  require_rows(name, x);
  require(x[-2] % a.size() == 0, name,
          "{} tokens of a sequence are not divisible by {} ranks: choose another length, or no sequence parallelism",
          x[-2], a.size());
  Spec y = x;
  y.shape[-2] /= a.size();
  return y;
}
void ScatterRows::forward(Stream& s, Tensor y, View x, const Args& a) { a.reduce_scatter(s, y, x); }
void ScatterRows::backward(Stream& s, Grad dx, View dy, Tensor all, const Args& a) {
  a.all_gather(s, dx.accumulate() ? all : static_cast<const Tensor&>(dx), dy);
  if (dx.accumulate()) put(s, dx, all);
}

Spec GatherColumns::infer(const Spec& x, const Args& a) {
  require(x.shape.rank() >= 1, name, "needs (..., C), got {}", to_string(x));
  Spec y = x;
  y.shape[-1] *= a.size();
  return y;
}
std::array<Spec, 1> GatherColumns::scratch(const Spec& x, const Args& a) {
  return {Spec{{a.size(), x[-1] ? x.size() / x[-1] : 0, x[-1]}, x.dtype}};
}
void GatherColumns::forward(Stream& s, Tensor y, View x, Tensor parts, const Args& a) {
  a.all_gather(s, parts, x);
  const auto width = x.cols();
  for (int i = 0; i < a.size(); ++i) copy_rows(s, writable(columns(y, i * width, width)), nth(parts, i));
}
std::array<Spec, 2> GatherColumns::backward_scratch(const Spec& x, const Args& a) { return {scratch(x, a)[0], x}; }
void GatherColumns::backward(Stream& s, Grad dx, View dy, Tensor parts, Tensor part, const Args& a) {
  const auto width = dx.cols();
  const Tensor mine = dx.accumulate() ? part : static_cast<const Tensor&>(dx);
  if (a.sums) {
    for (int i = 0; i < a.size(); ++i) copy_rows(s, writable(nth(parts, i)), columns(dy, i * width, width));
    a.reduce_scatter(s, mine, parts);
  } else {
    copy_rows(s, mine, columns(dy, a.rank() * width, width));
  }
  if (dx.accumulate()) put(s, dx, part);
}

}  // namespace hpcdl::parallel
