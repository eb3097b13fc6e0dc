#include "hpcdl/ops/adapter_rows/adapter_rows.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "hpcdl/core/convert.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/row_at.h"
#include "hpcdl/ops/rows.h"
#include "hpcdl/program/on.h"

namespace hpcdl {
namespace {

std::span<const std::int32_t> adapter_numbers(const View& v) {
  return {v.ptr<std::int32_t>(), static_cast<std::size_t>(v.size())};
}

void require_adapters(const View& a, const View& ends, const View& chosen) {
  std::int32_t before = 0;
  for (const auto end : adapter_numbers(ends)) {
    require(end >= before, AdapterRows::name, "ends must ascend, found {} after {}", end, before);
    before = end;
  }
  require(before == a[0], AdapterRows::name, "the last end must be the {} rows of a, found {}", a[0], before);
  for (const auto i : adapter_numbers(chosen))
    require(i >= -1 && i < ends.size(), AdapterRows::name, "expected an adapter from -1 to {}, found {}",
            ends.size() - 1, i);
}

Tensor leading_rows(const Tensor& t, std::int64_t rows, std::int64_t cols) {
  return {t.data(), {{rows, cols}, t.dtype()}, t.device()};
}

/// The matrix that begins at an element of others.
View matrix_within(const View& all, std::int64_t at, std::int64_t rows, std::int64_t cols) {
  return {all.ptr<std::byte>() + at * dtype_bytes(all.dtype()), {{rows, cols}, all.dtype()}, all.device()};
}

/// The rows that chose one adapter.
struct RowsOfAdapter {
  std::span<const std::int32_t> rows;

  template <class T> void gather(const Tensor& to, const View& x) const {
    const auto bytes = static_cast<std::size_t>(x.cols() * dtype_bytes(x.dtype()));
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::memcpy(row_at<T>(to, static_cast<std::int64_t>(i)), row_at<T>(x, rows[i]), bytes);
  }
  /// y += sums + shift, as one sum each. Both may be absent.
  template <class T> void add(Pool& pool, const Tensor& y, const Tensor& sums, const float* shift) const {
    const auto cols = y.cols();
    for_rows(pool, std::ssize(rows), cols, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) {
        T* const to = row_at<T>(y, rows[static_cast<std::size_t>(i)]);
        const float* const from = sums ? sums.ptr<float>() + i * cols : nullptr;
        for (std::int64_t c = 0; c < cols; ++c) {
          auto v = static_cast<float>(to[c]);
          if (from) v += from[c];
          if (shift) v += shift[c];
          to[c] = T(v);
        }
      }
    });
  }
};

void compute_on_cpu(Stream& s, Tensor y, View base, View x, View chosen, View a, View b, View ends, View scales,
                    View shifts, Tensor rows, Tensor inputs, Tensor low, Tensor sums) {
  require_adapters(a, ends, chosen);
  visit_dtype(x.dtype(), [&]<class T>() {
    const auto row_bytes = static_cast<std::size_t>(y.cols() * dtype_bytes(y.dtype()));
    if (y.data() != base.data())
      for (std::int64_t r = 0; r < y.rows(); ++r) std::memcpy(row_at<T>(y, r), row_at<T>(base, r), row_bytes);
    const auto choices = adapter_numbers(chosen);
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < ends.size(); ++i) {
      const auto end = std::int64_t{ends.ptr<std::int32_t>()[i]}, rank = end - begin;
      auto* const list = rows.ptr<std::int32_t>();
      std::size_t count = 0;
      for (std::size_t r = 0; r < choices.size(); ++r)
        if (choices[r] == i) list[count++] = static_cast<std::int32_t>(r);
      const RowsOfAdapter own{{list, count}};
      const auto n = static_cast<std::int64_t>(count);
      Tensor added;
      if (n > 0 && rank > 0) {
        const Tensor in = leading_rows(inputs, n, x.cols()), h = leading_rows(low, n, rank);
        own.gather<T>(in, x);
        Linear::forward(s, h, in, matrix_within(a, begin * x.cols(), rank, x.cols()), {}, {}, {});
        if (const float scale = scales.ptr<float>()[i]; scale != 1)
          for (std::int64_t e = 0; e < h.size(); ++e) h.ptr<T>()[e] = T(static_cast<float>(h.ptr<T>()[e]) * scale);
        added = leading_rows(sums, n, y.cols());
        Linear::forward(s, added, h, matrix_within(b, begin * y.cols(), y.cols(), rank), {}, {}, {.out = DType::f32});
      }
      if (n > 0 && (added || shifts))
        own.add<T>(s.pool(), y, added, shifts ? shifts.ptr<float>() + i * y.cols() : nullptr);
      begin = end;
    }
  });
}

}  // namespace

Spec AdapterRows::infer(const Spec& base, const Spec& x, const Spec& chosen, const Spec& a, const Spec& b,
                        const Spec& ends, const Spec& scales, const Spec& shifts, const Args&) {
  require_float(name, base, "base"), require_float(name, x, "x"), require_float(name, a, "a");
  require(x.dtype == base.dtype &&
              x.size() / std::max<std::int64_t>(1, x[-1]) == base.size() / std::max<std::int64_t>(1, base[-1]),
          name, "x must be as many rows of {} as base {}, got {}", dtype_name(base.dtype), to_string(base),
          to_string(x));
  const auto rows = base.size() / std::max<std::int64_t>(1, base[-1]);
  require(chosen.dtype == DType::i32 && chosen.size() == rows, name, "chosen must be {} numbers in I32, got {}", rows,
          to_string(chosen));
  require(a.shape.rank() == 2 && a[-1] == x[-1], name, "a must be (R, {}), got {}", x[-1], to_string(a));
  require_spec(name, "b", b, {{a[0] * base[-1]}, a.dtype});
  require(ends.dtype == DType::i32 && ends.shape.rank() == 1 && ends[0] > 0, name, "ends must be a list in I32, got {}",
          to_string(ends));
  require_spec(name, "scales", scales, {{ends[0]}, DType::f32});
  if (shifts) require_spec(name, "shifts", shifts, {{ends[0], base[-1]}, DType::f32});
  return base;
}

Cost AdapterRows::cost(const Spec& base, const Spec& x, const Spec& chosen, const Spec& a, const Spec&,
                       const Spec& ends, const Spec&, const Spec&, const Args&) {
  const auto rank = static_cast<double>(a[0]) / static_cast<double>(ends[0]);
  return {.operations = 2 * static_cast<double>(chosen.size()) * static_cast<double>(x[-1] + base[-1]) * rank,
          .unit = unit_of(x.dtype)};
}

std::array<Spec, 4> AdapterRows::scratch(const Spec& base, const Spec& x, const Spec& chosen, const Spec& a,
                                         const Spec&, const Spec&, const Spec&, const Spec&, const Args&) {
  const auto rows = chosen.size();
  return {Spec{{rows}, DType::i32}, Spec{{rows, x[-1]}, x.dtype}, Spec{{rows, a[0]}, x.dtype},
          Spec{{rows, base[-1]}, DType::f32}};
}

void AdapterRows::forward(Stream& s, Tensor y, View base, View x, View chosen, View a, View b, View ends, View scales,
                          View shifts, Tensor rows, Tensor inputs, Tensor low, Tensor sums, const Args&) {
  on(
      s,
      [&](auto, Pool&) { compute_on_cpu(s, y, base, x, chosen, a, b, ends, scales, shifts, rows, inputs, low, sums); },
      [&](auto& q) { cuda::adapter_rows(q, y, base, x, chosen, a, b, ends, scales, shifts, low); });
}

}  // namespace hpcdl
