#include "hpcdl/infer/kv_pool.h"

#include <fmt/format.h>

#include <numeric>

namespace hpcdl::infer {

std::string KvPool::name_of_keys(std::int64_t layer) { return fmt::format("pool.keys.{}", layer); }
std::string KvPool::name_of_values(std::int64_t layer) { return fmt::format("pool.values.{}", layer); }

KvPool::KvPool(std::int64_t layers, const Spec& layer, Device device)
    : pages_(layer[0]), free_(static_cast<std::size_t>(layer[0])) {
  require_pool("engine", layer);
  for (std::int64_t i = 0; i < 2 * layers; ++i) memory_.emplace_back(layer, device);
  std::iota(free_.rbegin(), free_.rend(), 0);
}

void KvPool::bind(Bindings& to) const {
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i / 2);
    to.bind(i % 2 == 0 ? name_of_keys(layer) : name_of_values(layer), memory_[i].tensor);
  }
}

std::vector<std::int32_t> KvPool::take(std::int64_t count) {
  require(count <= free_pages(), "engine", "{} pages of keys and values are needed, {} of {} are free", count,
          free_pages(), pages_);
  std::vector<std::int32_t> taken(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - taken.size());
  return taken;
}

void KvPool::give_back(std::span<const std::int32_t> pages) { free_.insert(free_.end(), pages.rbegin(), pages.rend()); }

}  // namespace hpcdl::infer
