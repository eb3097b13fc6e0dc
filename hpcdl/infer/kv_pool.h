#pragma once
// The keys and values of an engine: a pool of pages in every layer.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/kv_write/pages.h"

namespace hpcdl::infer {

/// The words for the types of a pool, as options take them.
inline constexpr std::array<std::string_view, 6> kKvWords{"auto", "bf16", "f32", "f16", "i8", "f8"};
/// Such a word's type: f8 is f8_e4m3, `none` stands for auto. Throws UsageError for other words; `verb` is for its
/// message.
DType kv_type(std::string_view verb, std::string_view word);

class KvPool {
 public:
  /// `layer`: the keys, and the values, of a layer (ops/kv_write/pages.h).
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
