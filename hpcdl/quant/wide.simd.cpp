#include "hpcdl/quant/wide.h"

#include <algorithm>

#include "hpcdl/simd/vec.h"

namespace hpcdl::cpu {
namespace {

/// The compiler maps it to the registers that the instruction set has.
using Eight [[gnu::vector_size(64)]] = double;
inline constexpr std::int64_t kLanes = 8, kPanel = 2 * kLanes, kTogether = 4, kDeep = 128, kPanels = 4;

[[gnu::always_inline]] inline void load(Eight& v, const double* p) { __builtin_memcpy(&v, p, sizeof v); }
[[gnu::always_inline]] inline void store(double* p, const Eight& v) { __builtin_memcpy(p, &v, sizeof v); }
[[gnu::always_inline]] inline void spread(Eight& v, double x) {
  for (int i = 0; i < kLanes; ++i) v[i] = x;
}

/// `count` x 16 sums over `deep` elements of k: of rows of a, and a panel of b whose rows are 16 wide.
template <class T, int kRows>
void tile(const T* a, std::int64_t row, std::int64_t column, const double* panel, std::int64_t deep, double* out) {
  Eight sums[kRows][2] = {};
  for (std::int64_t k = 0; k < deep; ++k, a += column, panel += kPanel) {
    Eight low, high;
    load(low, panel), load(high, panel + kLanes);
    for (int r = 0; r < kRows; ++r) {
      Eight x;
      spread(x, static_cast<double>(a[r * row]));
      sums[r][0] += x * low, sums[r][1] += x * high;
    }
  }
  for (int r = 0; r < kRows; ++r) store(out + r * kPanel, sums[r][0]), store(out + r * kPanel + kLanes, sums[r][1]);
}

template <class T>
void tiles(const T* a, std::int64_t row, std::int64_t column, const double* panel, std::int64_t deep, int rows,
           double* out) {
  switch (rows) {
    case 4: return tile<T, 4>(a, row, column, panel, deep, out);
    case 3: return tile<T, 3>(a, row, column, panel, deep, out);
    case 2: return tile<T, 2>(a, row, column, panel, deep, out);
    default: return tile<T, 1>(a, row, column, panel, deep, out);
  }
}

template <class T>
void pack(const quant::Wide& b, std::int64_t k, std::int64_t deep, std::int64_t j, std::int64_t cols, double* panel) {
  const T* from = static_cast<const T*>(b.data) + k * b.row + j * b.column;
  if (cols < kPanel) std::fill_n(panel, deep * kPanel, 0.0);
  if (b.column == 1) {
    for (std::int64_t i = 0; i < deep; ++i)
      for (std::int64_t c = 0; c < cols; ++c) panel[i * kPanel + c] = static_cast<double>(from[i * b.row + c]);
  } else {
    for (std::int64_t c = 0; c < cols; ++c)
      for (std::int64_t i = 0; i < deep; ++i)
        panel[i * kPanel + c] = static_cast<double>(from[i * b.row + c * b.column]);
  }
}

}  // namespace

template <class Isa>
void wide_product(Isa, Pool& pool, double* c, std::int64_t ld, const quant::Wide& a, const quant::Wide& b,
                  std::int64_t m, std::int64_t n, std::int64_t k, double factor, bool add) {
  // Several panels share each pass over the rows of a, which are read from memory.
  constexpr std::int64_t kWide = kPanels * kPanel;
  parallel_tasks(pool, (n + kWide - 1) / kWide, [&](std::int64_t task) {
    alignas(64) double packed[kPanels][kDeep * kPanel], sums[kTogether * kPanel];
    const auto first = task * kWide, end = std::min(n, first + kWide);
    if (!add)
      for (std::int64_t i = 0; i < m; ++i) std::fill_n(c + i * ld + first, end - first, 0.0);
    for (std::int64_t begin = 0; begin < k; begin += kDeep) {
      const auto deep = std::min(kDeep, k - begin);
      for (auto j = first; j < end; j += kPanel) {
        double* panel = packed[(j - first) / kPanel];
        const auto cols = std::min(kPanel, end - j);
        b.single ? pack<float>(b, begin, deep, j, cols, panel) : pack<double>(b, begin, deep, j, cols, panel);
      }
      for (std::int64_t i = 0; i < m; i += kTogether) {
        const int rows = static_cast<int>(std::min(kTogether, m - i));
        const auto offset = i * a.row + begin * a.column;
        for (auto j = first; j < end; j += kPanel) {
          const double* panel = packed[(j - first) / kPanel];
          const auto cols = std::min(kPanel, end - j);
          if (a.single) tiles(static_cast<const float*>(a.data) + offset, a.row, a.column, panel, deep, rows, sums);
          else tiles(static_cast<const double*>(a.data) + offset, a.row, a.column, panel, deep, rows, sums);
          for (int r = 0; r < rows; ++r)
            for (std::int64_t x = 0; x < cols; ++x) c[(i + r) * ld + j + x] += factor * sums[r * kPanel + x];
        }
      }
    }
  });
}

template <class Isa> double wide_dot(Isa, const double* a, const double* b, std::int64_t n) {
  Eight sums[2] = {};
  std::int64_t i = 0;
  for (; i + kPanel <= n; i += kPanel)
    for (int h = 0; h < 2; ++h) {
      Eight x, y;
      load(x, a + i + h * kLanes), load(y, b + i + h * kLanes);
      sums[h] += x * y;
    }
  sums[0] += sums[1];
  double sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += sums[0][l];
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

template <class Isa> void wide_add(Isa, double* y, double factor, const double* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

template <class Isa>
void wide_rows(Isa isa, Pool& pool, double* p, const double* a, std::int64_t ld, const double* v, std::int64_t n) {
  parallel_for(pool, n, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(n, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (auto i = begin; i < end; ++i) p[i] = wide_dot(isa, a + i * ld, v, n);
               });
}

template <class Isa>
void wide_update(Isa, Pool& pool, double* a, std::int64_t ld, const double* v, const double* w, std::int64_t n) {
  parallel_for(pool, n, std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(n, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (auto i = begin; i < end; ++i) {
                   double* row = a + i * ld;
                   const double x = v[i], y = w[i];
                   for (std::int64_t j = 0; j < n; ++j) row[j] -= x * w[j] + y * v[j];
                 }
               });
}

template <class Isa> void wide_turns(Isa, Pool& pool, double* z, std::int64_t n, std::span<const quant::Turn> turns) {
  constexpr std::int64_t kColumns = 64;  // of all rows, which stay in L2 for all turns
  parallel_tasks(pool, (n + kColumns - 1) / kColumns, [&](std::int64_t task) {
    const auto begin = task * kColumns, width = std::min(kColumns, n - begin);
    for (const auto& t : turns) {
      double* __restrict first = z + t.i * n + begin;
      double* __restrict second = first + n;
      for (std::int64_t j = 0; j < width; ++j) {
        const double x = first[j], y = second[j];
        first[j] = t.c * x - t.s * y, second[j] = t.s * x + t.c * y;
      }
    }
  });
}

template void wide_product(simd::Isa, Pool&, double*, std::int64_t, const quant::Wide&, const quant::Wide&,
                           std::int64_t, std::int64_t, std::int64_t, double, bool);
template double wide_dot(simd::Isa, const double*, const double*, std::int64_t);
template void wide_add(simd::Isa, double*, double, const double*, std::int64_t);
template void wide_rows(simd::Isa, Pool&, double*, const double*, std::int64_t, const double*, std::int64_t);
template void wide_update(simd::Isa, Pool&, double*, std::int64_t, const double*, const double*, std::int64_t);
template void wide_turns(simd::Isa, Pool&, double*, std::int64_t, std::span<const quant::Turn>);

}  // namespace hpcdl::cpu
