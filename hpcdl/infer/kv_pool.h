#pragma once
// The keys and values of an engine: a pool of pages in every layer, and the pages that are free.

#include <cstdint>
#include <span>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::infer {

class KvPool {
 public:
  /// `layer`: (pages, kv_heads, 64, D) of the keys, and of the values, of a layer.
  KvPool(std::int64_t layers, const Spec& layer, Device device);

  /// Binds the pools to their names in programs.
  void bind(Bindings& to) const;
  /// Those names.
  static std::string name_of_keys(std::int64_t layer);
  static std::string name_of_values(std::int64_t layer);

  std::int64_t pages() const { return pages_; }
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  /// Throws Error if there are fewer.
  std::vector<std::int32_t> take(std::int64_t count);
  void give_back(std::span<const std::int32_t> pages);

 private:
  std::int64_t pages_;
  std::vector<OwnedTensor> memory_;  // keys and values of layer 0, of layer 1, ...
  std::vector<std::int32_t> free_;   // the last one is taken first
};

}  // namespace hpcdl::infer
