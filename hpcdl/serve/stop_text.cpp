#include "hpcdl/serve/stop_text.h"

#include <algorithm>
#include <utility>

namespace hpcdl::serve {

std::string StopText::push(std::string_view text) {
  if (stopped_) return "";
  held_ += text;
  // The one that ends first, so that the result does not depend on how the text is cut into parts.
  std::size_t begin = 0, end = std::string::npos;
  for (const auto& s : strings_)
    if (const auto at = held_.find(s); at != std::string::npos && std::pair(at + s.size(), at) < std::pair(end, begin))
      begin = at, end = at + s.size();
  if (end != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, "").substr(0, begin);
  }
  auto out = held_.substr(0, held_.size() - held_back());
  held_.erase(0, out.size());
  return out;
}

std::string StopText::finish() { return std::exchange(held_, ""); }

/// The longest end of held_ with which one of the strings begins.
std::size_t StopText::held_back() const {
  std::size_t longest = 0;
  for (const auto& s : strings_)
    for (std::size_t n = std::min(s.size() - 1, held_.size()); n > longest; --n)
      if (held_.ends_with(std::string_view(s).substr(0, n))) longest = n;
  return longest;
}

}  // namespace hpcdl::serve
