#include "hpcdl/infer/window_pages.h"

#include <algorithm>
#include <numeric>

#include "hpcdl/core/error.h"
#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::infer {

std::int64_t window_pages(const io::ModelConfig& model, std::int64_t pages, std::int64_t sequences,
                          std::int64_t budget) {
  if (model.window == 0) return 0;
  const auto of_text = pages_for(model.window) + 2;  // both ends may lie within a page
  const auto all = sequences * of_text + pages_for(budget);
  return all < pages ? all : 0;
}

std::int64_t first_page_seen(std::int64_t tokens, std::int64_t window) {
  return std::max<std::int64_t>(0, tokens + 1 - window) / kPageTokens;
}

WindowPages::WindowPages(std::int64_t pages, std::int64_t table_pages)
    : pages_(pages), owners_(static_cast<std::size_t>(table_pages)), free_(static_cast<std::size_t>(pages)) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

std::int32_t WindowPages::take() {
  if (free_.empty()) {
    require(!idle_.empty(), "engine", "a page for layers with a window is needed, but texts hold all {}", pages_);
    auto& owner = at(idle_.front());
    idle_.pop_front();
    free_.push_back(owner.page);
    owner.page = -1;
  }
  const auto page = free_.back();
  free_.pop_back();
  return page;
}

std::int32_t WindowPages::hold(std::int32_t owner) {
  auto& o = at(owner);
  if (o.page < 0) o.page = take();
  else if (o.holders == 0) idle_.erase(o.place);
  ++o.holders;
  return o.page;
}

void WindowPages::release(std::int32_t owner, bool found_again) {
  auto& o = at(owner);
  if (--o.holders > 0) return;
  if (found_again) {
    o.place = idle_.insert(idle_.end(), owner);
  } else {
    free_.push_back(o.page);
    o.page = -1;
  }
}

}  // namespace hpcdl::infer
