#pragma once
// The keys and values of an engine: a pool of pages in every layer.

#include <array>
#include <cstdint>
#include <span>
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

/// Page i of a text, in the layers that keep all its keys, and in those with a window.
struct PagePair {
  std::int32_t all = 0, window = 0;
};

class KvPool {
 public:
  /// The keys, and the values, of a layer.
  struct Layer {
    Spec spec;            // ops/kv_write/pages.h
    bool window = false;  // its pages are those of the layers with a window
  };
  KvPool(std::span<const Layer> layers, Device device);

  /// Binds the pools to their names in programs.
  void bind(Bindings& to) const;
  /// Those names.
  static std::string name_of_keys(std::int64_t layer);
  static std::string name_of_values(std::int64_t layer);
  /// Copies a page of all layers.
  void copy_page(Stream& s, PagePair to, PagePair from) const;

 private:
  struct Memory {
    OwnedTensor keys, values;
    bool window;
  };
  std::vector<Memory> layers_;
};

}  // namespace hpcdl::infer
