#pragma once
// Whether a GPU may add up in another order each time, where that is faster. By default every op repeats its bits.

#include <cstdlib>
#include <string_view>

namespace hpcdl {

namespace detail {
inline thread_local bool atomic_sums = [] {
  const char* text = std::getenv("HPCDL_ATOMIC_SUMS");
  return text && std::string_view(text) == "1";
}();
}  // namespace detail

/// Of what the calling thread launches; captured work keeps what it was captured with. Where HPCDL_ATOMIC_SUMS=1, true to begin with.
inline bool atomic_sums() { return detail::atomic_sums; }

/// Sets it for as long as this lives.
class WithAtomicSums {
 public:
  explicit WithAtomicSums(bool allowed) : before_(detail::atomic_sums) { detail::atomic_sums = allowed; }
  ~WithAtomicSums() { detail::atomic_sums = before_; }
  WithAtomicSums(const WithAtomicSums&) = delete;
  WithAtomicSums& operator=(const WithAtomicSums&) = delete;

 private:
  bool before_;
};

}  // namespace hpcdl
