#pragma once
// The keys and values of an engine: a pool of pages in every layer.

#include <cstdint>
#include <string>
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
  /// Copies a page of all layers.
  void copy_page(Stream& s, std::int32_t to, std::int32_t from) const;

 private:
  std::vector<OwnedTensor> memory_;  // keys and values of layer 0, of layer 1, ...
};

}  // namespace hpcdl::infer
