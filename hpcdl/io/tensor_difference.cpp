#include "hpcdl/io/tensor_difference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/f8.h"

namespace hpcdl::io {
namespace {

/// Types that kernels do not read, and no arithmetic knows, count as their codes.
template <class T> double number(T x) {
  if constexpr (is_f8<T>) return from_f8(x);
  else if constexpr (std::is_convertible_v<T, double>) return static_cast<double>(x);
  else return static_cast<double>(x.bits);
}

template <class T> void fill_numbers(const std::byte* from, std::vector<double>& to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    T x;
    std::memcpy(&x, from + i * sizeof(T), sizeof(T));
    to[i] = number(x);
  }
}

void fill_numbers(const Tensor& from, std::vector<double>& to) {
  switch (from.dtype()) {
#define HPCDL_NUMBERS(dtype, name, array_name, type, floating) \
  case DType::dtype: return fill_numbers<type>(from.ptr<std::byte>(), to);
    HPCDL_DTYPES(HPCDL_NUMBERS)
#undef HPCDL_NUMBERS
    case DType::none: return;
  }
}

/// A tensor that is read a chunk at a time.
class Chunks {
 public:
  explicit Chunks(const StoredTensor& tensor)
      : tensor_(tensor), bytes_(std::min(tensor.whole.size(), kChunkElements) * dtype_bytes(tensor.whole.dtype)) {}

  void read(Interval range) {
    now_ = Tensor(bytes_.data(), {{range.count()}, tensor_.whole.dtype});
    read_elements(tensor_, range, now_);
    numbers.resize(static_cast<std::size_t>(range.count()));
    fill_numbers(now_, numbers);
  }
  bool same_bits(const Chunks& other) const {
    return std::memcmp(now_.data(), other.now_.data(), static_cast<std::size_t>(now_.bytes())) == 0;
  }
  std::vector<double> numbers;

 private:
  const StoredTensor& tensor_;
  Buffer bytes_;
  Tensor now_;
};

}  // namespace

TensorDifference difference(const StoredTensor& a, const StoredTensor& b) {
  TensorDifference d;
  Chunks left(a), right(b);
  const bool one_type = a.whole.dtype == b.whole.dtype;
  for_each_chunk(a.whole, [&](Interval range) {
    left.read(range), right.read(range);
    d.bits |= one_type && !left.same_bits(right);
    for (std::size_t i = 0; i < left.numbers.size(); ++i) {
      const double x = left.numbers[i], y = right.numbers[i];
      for (const double v : {std::abs(x), std::abs(y)})
        if (std::isfinite(v)) d.magnitude = std::max(d.magnitude, v);
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      ++d.elements;
      const double apart = std::abs(x - y);
      d.largest = std::max(d.largest, std::isfinite(apart) ? apart : std::numeric_limits<double>::infinity());
    }
  });
  return d;
}

}  // namespace hpcdl::io
