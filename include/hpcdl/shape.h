#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

namespace hpcdl {

/// Dimensions of a tensor, outermost first. At most six, stored in place.
class Shape {
 public:
  static constexpr int kMaxRank = 6;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> dims) {
    for (auto d : dims) push_back(d);
  }

  constexpr int rank() const { return rank_; }
  constexpr std::int64_t operator[](int i) const { return dims_[i < 0 ? rank_ + i : i]; }
  constexpr std::int64_t& operator[](int i) { return dims_[i < 0 ? rank_ + i : i]; }
  constexpr const std::int64_t* begin() const { return dims_.data(); }
  constexpr const std::int64_t* end() const { return dims_.data() + rank_; }
  /// Precondition: rank() < kMaxRank.
  constexpr void push_back(std::int64_t d) { dims_[rank_++] = d; }
  /// Number of elements; 1 for a scalar (rank 0).
  constexpr std::int64_t size() const {
    std::int64_t n = 1;
    for (auto d : *this) n *= d;
    return n;
  }
  constexpr bool operator==(const Shape& o) const {
    if (rank_ != o.rank_) return false;
    for (int i = 0; i < rank_; ++i)
      if (dims_[i] != o.dims_[i]) return false;
    return true;
  }

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

/// Row-major strides, in elements.
constexpr Shape contiguous_strides(const Shape& s) {
  Shape out = s;
  std::int64_t n = 1;
  for (int i = s.rank() - 1; i >= 0; --i) {
    out[i] = n;
    n *= s[i];
  }
  return out;
}

/// Strides of dims of one element have no meaning, and frameworks leave arbitrary values there. Sets them so that rows
/// can be walked by strides[-2] alone: dims of one right above the columns take the stride of the nearest longer dim
/// outside, all others the distance that the dim inside them spans.
constexpr Shape clean_strides(const Shape& s, Shape strides) {
  if (s.rank() == 0) return strides;
  if (s[-1] == 1) strides[-1] = 1;
  std::int64_t next = s[-1] * strides[-1];
  int outside = s.rank() - 2;
  while (outside >= 0 && s[outside] == 1) --outside;
  if (outside >= 0) next = strides[outside];
  for (int i = s.rank() - 2; i >= 0; --i) {
    if (s[i] == 1) strides[i] = next;
    next = strides[i] * s[i];
  }
  return strides;
}

}  // namespace hpcdl
